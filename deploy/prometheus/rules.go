// Package prometheus is the rules that watch a sale, embedded so that seatctl can
// judge them where there is no Prometheus server. It does no I/O and needs no clock;
// a file that is missing is a build that fails.
package prometheus

import _ "embed"

//go:embed recording.yml
var recording []byte

//go:embed alerts.yml
var alerts []byte

// Rules are the rules files, in the order in which they are evaluated: alerts use what
// the recording rules before them have recorded. Read only.
func Rules() [][]byte { return [][]byte{recording, alerts} }
