package capacity_test

import (
	"errors"
	"fmt"
	"log/slog"
	"math"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/go-redis/v9"
	"go.uber.org/goleak"

	"holdfast/internal/admission"
	"holdfast/internal/booking"
	"holdfast/internal/booking/bookingtest"
	"holdfast/internal/capacity"
	"holdfast/internal/testenv"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// stat is what a Redis says of itself: bytes, and microseconds of CPU.
type stat struct{ memory, replicated, cpu float64 }

// ask reads it. Memory is without what waits for replicas.
func ask(t *testing.T, rdb *redis.Client) stat {
	t.Helper()
	fields := map[string]float64{}
	for _, section := range []string{"memory", "replication", "cpu"} {
		text, err := rdb.Info(t.Context(), section).Result()
		if err != nil {
			t.Fatalf("info %s: got %v, want nil", section, err)
		}
		for line := range strings.Lines(text) {
			name, value, _ := strings.Cut(strings.TrimSpace(line), ":")
			if f, err := strconv.ParseFloat(value, 64); err == nil {
				fields[name] = f
			}
		}
	}
	return stat{
		memory:     fields["used_memory"] - fields["mem_total_replication_buffers"],
		replicated: fields["master_repl_offset"],
		cpu:        1e6 * (fields["used_cpu_user"] + fields["used_cpu_sys"]),
	}
}

// sale is one level of seats over a primary and a replica.
type sale struct {
	gate             *admission.Gate
	primary, replica *redis.Client
	clock            *bookingtest.Clock
	level            string
	people           []booking.Candidate
}

// newSale opens a sale of n seats to twice as many people.
func newSale(t *testing.T, n int) *sale {
	t.Helper()
	pair := testenv.Engines()[0].Pair(t)
	s := &sale{clock: new(bookingtest.Clock)}
	s.primary = admission.NewClient(admission.ClientConfig{Addr: pair.Primary.Addr(), Pool: 64})
	s.replica = redis.NewClient(&redis.Options{Addr: pair.Replicas[0].Addr()})
	t.Cleanup(func() { _, _ = s.primary.Close(), s.replica.Close() })
	keys, err := admission.NewKeys("{sale}:")
	if err != nil {
		t.Fatalf("keys: got %v, want nil", err)
	}
	s.gate, err = admission.New(s.primary, admission.Options{
		Keys: keys, Acks: 1, ClockOffset: s.clock.Offset, Log: slog.New(slog.DiscardHandler), Registerer: prometheus.NewRegistry(),
	})
	if err != nil {
		t.Fatalf("gate: got %v, want nil", err)
	}
	of := bookingtest.Sale()
	of.Cap, of.Levels = n, of.Levels[:1]
	of.Levels[0].Cap, s.level = n, of.Levels[0].ID
	for i := range 2 * n {
		s.people = append(s.people, booking.Candidate{Code: fmt.Sprintf("AB-%d", 100001+i), Email: fmt.Sprintf("candidate%d@example.org", 100001+i)})
	}
	if _, err := s.gate.ApplySale(t.Context(), of, bookingtest.Epoch, false); err != nil {
		t.Fatalf("apply sale: got %v, want nil", err)
	}
	if err := s.gate.AddCandidates(t.Context(), s.people); err != nil {
		t.Fatalf("add candidates: got %v, want nil", err)
	}
	if err := s.gate.Open(t.Context()); err != nil {
		t.Fatalf("open: got %v, want nil", err)
	}
	return s
}

// each does n of one thing, so many at a time, and returns what one has cost the primary;
// it logs that and the replica's CPU.
func (s *sale) each(t *testing.T, what string, width, n int, do func(i int) error) stat {
	t.Helper()
	todo := make(chan int, n)
	for i := range n {
		todo <- i
	}
	close(todo)
	before, replica := ask(t, s.primary), ask(t, s.replica)
	var wg sync.WaitGroup
	for range width {
		wg.Go(func() {
			for i := range todo {
				if err := do(i); err != nil {
					t.Errorf("%s %d: got %v, want nil", what, i, err)
				}
			}
		})
	}
	wg.Wait()
	after, of := ask(t, s.primary), float64(n)
	cost := stat{(after.memory - before.memory) / of, (after.replicated - before.replicated) / of, (after.cpu - before.cpu) / of}
	t.Logf("%2d at once, %-9s: %5.0f B kept, %5.0f B replicated, %5.1f µs CPU, replica %5.1f µs", width, what, cost.memory, cost.replicated, cost.cpu, (ask(t, s.replica).cpu-replica.cpu)/of)
	return cost
}

// life takes n seats from their admission to paid or released, and returns what a hold
// costs and what a payment costs on top.
func (s *sale) life(t *testing.T, width, n int, url string) (hold, paid stat) {
	t.Helper()
	ctx, g, rows := t.Context(), s.gate, make([]booking.Row, n)
	payment := func(i int) booking.Payment {
		return booking.Payment{ID: fmt.Sprintf("TR0011mqN0nOK1762072%06d", i), URL: url, Signature: "k3YOrG8qy6"}
	}
	book := func(i int, key string) (booking.Seat, error) {
		r := booking.Request{Code: s.people[i].Code, Email: s.people[i].Email, Level: s.level, Key: key}
		return g.Admit(ctx, r, booking.NewAttemptSuffix(time.Now()), false)
	}
	sum := func(of *stat, what string, n int, do func(i int) error) {
		c := s.each(t, what, width, n, do)
		*of = stat{of.memory + c.memory, of.replicated + c.replicated, of.cpu + c.cpu}
	}
	refused := func(want error, err error) error {
		if errors.Is(err, want) {
			return nil
		}
		return fmt.Errorf("%w, want %w", err, want)
	}
	sum(&hold, "admit", n, func(i int) error {
		seat, err := book(i, fmt.Sprintf("%024d", i))
		rows[i] = seat.Row
		return err
	})
	sum(&hold, "attach", n, func(i int) error {
		_, _, err := g.Attach(ctx, s.people[i].Code, rows[i].Attempt, payment(i))
		return err
	})
	sum(&hold, "queued", n, func(i int) error { return g.Queued(ctx, s.people[i].Code, rows[i].Attempt) })
	var rest stat
	sum(&rest, "full", n, func(i int) error {
		_, err := book(n+i, "")
		return refused(booking.ErrLevelFull, err)
	})
	sum(&rest, "duplicate", n, func(i int) error {
		_, err := book(i, "")
		return refused(booking.ErrDuplicate, err)
	})
	sum(&rest, "look", n, func(i int) error {
		_, _, err := g.Row(ctx, s.people[i].Code)
		return err
	})
	half := n / 2
	sum(&paid, "begin-pay", half, func(i int) error {
		_, _, err := g.BeginPay(ctx, s.people[i].Code, rows[i].Attempt, payment(i).ID, "T0K3NT0K3NT0K3NT0K3NT0K3NT", time.Minute)
		return err
	})
	sum(&paid, "settle", half, func(i int) error {
		_, err := g.Settle(ctx, s.people[i].Code, rows[i].Attempt, payment(i).ID, fmt.Sprintf("CK%08d", i))
		return err
	})
	sum(&paid, "done", half, func(i int) error { return g.RecordDone(ctx, s.people[i].Code, rows[i].Attempt) })
	sum(&paid, "done", half, func(i int) error { return g.MailDone(ctx, s.people[i].Code, rows[i].Attempt) })
	s.clock.Advance(time.Hour)
	sum(&rest, "release", n-half, func(i int) error { return g.Release(ctx, s.people[half+i].Code, rows[half+i].Attempt) })
	return hold, paid
}

// The bytes that the model is told are those of the real scripts on a real Redis with a
// replica. Times depend on the machine: they are logged, -v shows them, and the inputs
// have them.
func TestLedger_SeatsWeighWhatTheModelIsTold(t *testing.T) {
	t.Parallel()
	in := capacity.Current()
	held, _ := capacity.Sample(in)
	newSale(t, 200).life(t, 1, 200, held.PaymentURL)
	hold, paid := newSale(t, 2000).life(t, 64, 2000, held.PaymentURL)
	for _, c := range []struct {
		what      string
		got, want float64
		within    float64
	}{
		{"replication stream of a hold", hold.replicated, in.Ledger.ReplHold.Value, 0.1},
		{"replication stream of a payment", paid.replicated, in.Ledger.ReplPaid.Value, 0.1},
		{"memory of a seat", hold.memory, in.Ledger.Seat.Value, 0.25}, // the tables of Redis grow by doubling
	} {
		if math.Abs(c.got-c.want) > c.within*c.want {
			t.Errorf("%s: got %.0f bytes, want %.0f within %.0f %%: set the input, and write the document anew", c.what, c.got, c.want, 100*c.within)
		}
	}
}
