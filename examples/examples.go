// Package examples embeds the demo sale and its candidates, which the local
// profile loads unless told otherwise.
package examples

import _ "embed"

// Sale is sale.yaml.
//
//go:embed sale.yaml
var Sale []byte

// Candidates is candidates.csv.
//
//go:embed candidates.csv
var Candidates []byte
