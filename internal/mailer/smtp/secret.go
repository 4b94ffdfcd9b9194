package smtp

import "log/slog"

// Secret is text that does not print itself: not by fmt with any verb, not in
// JSON, not through slog, also inside other values.
type Secret struct {
	// A pointer, because fmt walks past methods where it may not call them, as in
	// an unexported field, and then finds an address only.
	value *string
}

// NewSecret hides a value.
func NewSecret(value string) Secret { return Secret{&value} }

// reveal is the value, for the wire and nothing else.
func (s Secret) reveal() string {
	if s.value == nil {
		return ""
	}
	return *s.value
}

const hidden = "[secret]"

// String hides the value from %v and %s.
func (Secret) String() string { return hidden }

// GoString hides it from %#v.
func (Secret) GoString() string { return hidden }

// MarshalText hides it from JSON, also inside a struct that slog prints.
func (Secret) MarshalText() ([]byte, error) { return []byte(hidden), nil }

// LogValue hides it from slog.
func (Secret) LogValue() slog.Value { return slog.StringValue(hidden) }
