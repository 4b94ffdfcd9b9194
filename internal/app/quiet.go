package app

import (
	"io"
	"log"

	"holdfast/internal/admission"
)

// Quiet has the libraries that write to standard error by themselves write nothing:
// the Redis client, and net/http by package log, which quotes what a server sent.
// What matters in it comes back as an error of the call, and is logged there as
// docs/logs.md says. Both writers are one for the whole process: so this is for the
// function that is a process, at its start, and for nothing else. Safe to repeat, also
// at the same time.
func Quiet() {
	admission.Quiet()
	log.SetOutput(io.Discard)
}
