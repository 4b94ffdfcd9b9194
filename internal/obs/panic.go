package obs

import (
	"fmt"
	"runtime"
	"runtime/debug"
)

// PanicError is a panic as an error. Its text holds nothing of the value, which may
// be whatever somebody sent: only the runtime's own words, or the value's type.
type PanicError struct {
	what string
	// Stack is where it was, for the log.
	Stack string
}

// Panicked makes the error of a recovered value; it is called where the value was
// recovered, so that the stack is the panic's.
func Panicked(value any) *PanicError {
	what := fmt.Sprintf("a %T", value)
	if err, ok := value.(runtime.Error); ok {
		what = err.Error()
	}
	return &PanicError{what: what, Stack: string(debug.Stack())}
}

// Error is the panic without its value.
func (e *PanicError) Error() string { return "panic: " + e.what }
