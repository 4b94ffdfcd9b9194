package admission

import (
	"context"
	"fmt"
	"time"

	"holdfast/internal/booking"
	"holdfast/scripts/lua"
)

var extendScript = newScript("extend", lua.Extend)

// Extend makes the deadline of one attempt later, once for each run, whose ids
// must sort by the time of their runs. A deadline before missed stays as it is, and
// so does that of a seat admitted at or after the given time. The word says what
// became of it: "extended"; "already", by this run or a later one; "missed";
// "after"; "moved", when nobody waits for its payer. The row, as it is then, comes
// with every word but the last. Acknowledged; safe to repeat.
func (g *Gate) Extend(ctx context.Context, code, attempt, run string, by time.Duration, missed, after time.Time) (booking.Row, string, error) {
	a, err := g.call(ctx, extendScript, g.keys.base(), code, attempt, run, by.Milliseconds(), missed.UnixMilli(), after.UnixMilli())
	if err != nil {
		return booking.Row{}, "", err
	}
	switch a.word {
	case "extended", "already", "missed", "after":
		row, err := a.row()
		return row, a.word, err
	case "moved", "not_owner":
		return booking.Row{}, "moved", nil
	}
	return booking.Row{}, "", fmt.Errorf("%s answered %q, which this program does not know", extendScript.name, a.word)
}
