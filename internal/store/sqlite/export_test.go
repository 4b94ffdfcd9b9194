package sqlite

import "holdfast/internal/sqlitedb"

// SchemaBefore is the schema of a program that knew only the first steps.
func SchemaBefore(steps int) sqlitedb.Schema {
	s := schema()
	s.Steps = s.Steps[:steps]
	return s
}
