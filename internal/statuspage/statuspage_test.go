package statuspage_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/go-redis/v9"
	"go.uber.org/goleak"

	"holdfast/internal/admission"
	"holdfast/internal/booking"
	"holdfast/internal/booking/bookingtest"
	"holdfast/internal/objstore"
	"holdfast/internal/objstore/memory"
	"holdfast/internal/statuspage"
	"holdfast/internal/testenv"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const prefix = "{sale}:"

var (
	errPut  = errors.New("put: connection refused")
	errKept = errors.New("put: connection reset before the reply")
)

// objects is an object store that keeps book of what is put, holds it against the
// promises of status.json, and breaks as told.
type objects struct {
	*memory.Store

	mu     sync.Mutex
	down   bool
	kept   int                        // the next puts are made and their replies lost
	stall  func(version int64) func() // what a put waits for before it is made
	puts   []statuspage.Document      // in the order in which they took effect
	broken []string
}

func newObjects(t *testing.T) *objects {
	t.Helper()
	o := &objects{Store: memory.New()}
	t.Cleanup(func() {
		for _, b := range o.broken {
			t.Error(b)
		}
	})
	return o
}

func (o *objects) Get(ctx context.Context, key string) ([]byte, string, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.down {
		return nil, "", errPut
	}
	return o.Store.Get(ctx, key)
}

func (o *objects) Put(ctx context.Context, key string, body []byte, contentType, ifMatch string) (string, error) {
	var d statuspage.Document
	if err := json.Unmarshal(body, &d); err != nil {
		return "", err
	}
	o.mu.Lock()
	stall := o.stall
	o.mu.Unlock()
	if stall != nil {
		stall(d.Version)()
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.down {
		return "", errPut
	}
	etag, err := o.Store.Put(ctx, key, body, contentType, ifMatch)
	if err != nil {
		return "", err
	}
	o.judge(d, key, contentType)
	if o.kept > 0 {
		o.kept--
		return "", errKept
	}
	return etag, nil
}

// judge holds a document that took effect against the ones before it.
func (o *objects) judge(d statuspage.Document, key, contentType string) {
	bad := func(format string, args ...any) { o.broken = append(o.broken, fmt.Sprintf(format, args...)) }
	if key != "status.json" || contentType != "application/json" {
		bad("put %s as %s, want status.json as application/json", key, contentType)
	}
	if n := len(o.puts); n > 0 && o.puts[n-1].Version >= d.Version {
		bad("version %d was put over version %d", d.Version, o.puts[n-1].Version)
	}
	if d.Total.Left < 0 || d.Total.Left > d.Total.Cap {
		bad("total left %d of %d", d.Total.Left, d.Total.Cap)
	}
	for _, l := range d.Levels {
		if l.Left < 0 || l.Left > l.Cap || l.Left > d.Total.Left || l.Full != (l.Left == 0) {
			bad("level %s: left %d of %d, full %t, total left %d", l.ID, l.Left, l.Cap, l.Full, d.Total.Left)
		}
	}
	o.puts = append(o.puts, d)
}

func (o *objects) breakDown(down bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.down = down
}

func (o *objects) count() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return len(o.puts)
}

// sale is a seat ledger with its status page.
type sale struct {
	*admission.Gate
	rdb     *redis.Client
	clock   *bookingtest.Clock
	objects *objects
}

// open is an open sale on a Redis inside the test.
func open(t *testing.T) *sale {
	t.Helper()
	t.Parallel()
	s := &sale{clock: new(bookingtest.Clock), objects: newObjects(t)}
	s.rdb = admission.NewClient(admission.ClientConfig{Addr: testenv.Mini(t), Pool: 16})
	t.Cleanup(func() { _ = s.rdb.Close() })
	keys, err := admission.NewKeys(prefix)
	if err != nil {
		t.Fatal(err)
	}
	s.Gate, err = admission.New(s.rdb, admission.Options{
		Keys: keys, Acks: 0, ClockOffset: s.clock.Offset, Log: slog.New(slog.DiscardHandler), Registerer: prometheus.NewRegistry(),
	})
	if err != nil {
		t.Fatal(err)
	}
	s.start(t)
	return s
}

// start puts the sale into force on an empty Redis.
func (s *sale) start(t *testing.T) {
	t.Helper()
	if _, err := s.ApplySale(t.Context(), bookingtest.Sale(), bookingtest.Epoch, false); err != nil {
		t.Fatal(err)
	}
	if err := s.AddCandidates(t.Context(), bookingtest.Candidates(200)); err != nil {
		t.Fatal(err)
	}
	if err := s.Open(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// process is one process's publisher.
type process struct {
	*statuspage.Publisher
	reg *prometheus.Registry
}

func (s *sale) process() *process {
	reg := prometheus.NewRegistry()
	return &process{statuspage.New(s.Gate, s.objects, slog.New(slog.DiscardHandler), reg), reg}
}

func (p *process) mustPublish(t *testing.T) {
	t.Helper()
	if err := p.Publish(t.Context()); err != nil {
		t.Fatalf("publish: %v", err)
	}
}

// outcome reads the count of one outcome.
func (p *process) outcome(t *testing.T, name string) int {
	t.Helper()
	families, err := p.reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if f.GetName() == "holdfast_status_publish_total" && m.GetLabel()[0].GetValue() == name {
				return int(m.GetCounter().GetValue())
			}
		}
	}
	return 0
}

func (s *sale) admit(t *testing.T, i int, level string) booking.Row {
	t.Helper()
	r := booking.Request{Code: bookingtest.Code(i), Email: bookingtest.Email(i), Level: level}
	seat, err := s.Admit(t.Context(), r, booking.NewAttemptSuffix(s.clock.Now()), false)
	if err != nil {
		t.Fatalf("admit %s: %v", r.Code, err)
	}
	return seat.Row
}

// endThrottle is what the passing of the throttle's time does.
func (s *sale) endThrottle(t *testing.T) {
	t.Helper()
	if err := s.rdb.Del(t.Context(), prefix+"status:throttle").Err(); err != nil {
		t.Fatal(err)
	}
}

// there is the document that people read.
func (s *sale) there(t *testing.T) statuspage.Document {
	t.Helper()
	body, _, err := s.objects.Store.Get(t.Context(), statuspage.Key)
	if err != nil {
		t.Fatal(err)
	}
	var d statuspage.Document
	if err := json.Unmarshal(body, &d); err != nil {
		t.Fatal(err)
	}
	return d
}

// wantLeft wants the document to say that much is left of N1 and of all.
func (s *sale) wantLeft(t *testing.T, n1, all int) {
	t.Helper()
	d := s.there(t)
	if d.Levels[0].Left != n1 || d.Total.Left != all {
		t.Errorf("left: got %d of N1 and %d of all, want %d and %d", d.Levels[0].Left, d.Total.Left, n1, all)
	}
}

func (s *sale) wantPuts(t *testing.T, what string, want int) {
	t.Helper()
	if got := s.objects.count(); got != want {
		t.Errorf("%s: got %d documents so far, want %d", what, got, want)
	}
}

func TestCompose(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 12, 1, 4, 0, 0, 0, time.FixedZone("", 6*3600))
	level := func(id string, limit, admitted int) booking.LevelFigures {
		return booking.LevelFigures{ID: id, Name: id + " name", Cap: limit, Admitted: admitted}
	}
	want := func(id string, limit, left int) statuspage.Level {
		return statuspage.Level{ID: id, Name: id + " name", Seats: statuspage.Seats{Cap: limit, Left: left}, Full: left == 0}
	}
	for _, c := range []struct {
		name   string
		in     booking.Figures
		total  statuspage.Seats
		levels []statuspage.Level
	}{
		{
			"plain", booking.Figures{Cap: 5, Total: 3, Levels: []booking.LevelFigures{level("N1", 3, 2), level("N2", 3, 1)}},
			statuspage.Seats{Cap: 5, Left: 2}, []statuspage.Level{want("N1", 3, 1), want("N2", 3, 2)},
		},
		{
			"the global cap bounds a level", booking.Figures{Cap: 5, Total: 4, Levels: []booking.LevelFigures{level("N1", 3, 0), level("N2", 9, 4)}},
			statuspage.Seats{Cap: 5, Left: 1}, []statuspage.Level{want("N1", 3, 1), want("N2", 9, 1)},
		},
		{
			"sold out with seats in a level", booking.Figures{Cap: 5, Total: 5, Levels: []booking.LevelFigures{level("N1", 3, 2), level("N2", 9, 3)}},
			statuspage.Seats{Cap: 5}, []statuspage.Level{want("N1", 3, 0), want("N2", 9, 0)},
		},
		{
			"more than the caps is never negative", booking.Figures{Cap: 5, Total: 7, Levels: []booking.LevelFigures{level("N1", 3, 4), level("N2", 9, 3)}},
			statuspage.Seats{Cap: 5}, []statuspage.Level{want("N1", 3, 0), want("N2", 9, 0)},
		},
		{
			"a damaged level has nothing left", booking.Figures{Cap: 5, Total: 1, Levels: []booking.LevelFigures{level("N1", 3, -1), level("N2", 3, 1)}},
			statuspage.Seats{Cap: 5, Left: 4}, []statuspage.Level{want("N1", 3, 0), want("N2", 3, 2)},
		},
		{
			"a damaged total leaves nothing", booking.Figures{Cap: 5, Total: -1, Levels: []booking.LevelFigures{level("N1", 3, 0)}},
			statuspage.Seats{Cap: 5}, []statuspage.Level{want("N1", 3, 0)},
		},
		{
			"a cap of 0 is full", booking.Figures{Cap: 5, Levels: []booking.LevelFigures{level("N9", 0, 0)}},
			statuspage.Seats{Cap: 5, Left: 5}, []statuspage.Level{want("N9", 0, 0)},
		},
		{"no levels is a list", booking.Figures{}, statuspage.Seats{}, []statuspage.Level{}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			c.in.Version, c.in.At, c.in.Open, c.in.Reason = 7, at, true, "why"
			want := statuspage.Document{Version: 7, UpdatedAt: at.UTC(), Open: true, Reason: "why", Total: c.total, Levels: c.levels}
			if diff := cmp.Diff(want, statuspage.Compose(c.in)); diff != "" {
				t.Errorf("document (-want +got):\n%s", diff)
			}
		})
	}
}

func TestCompose_SaysWhenItOpensOnlyWhileItIsClosed(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 12, 1, 10, 0, 0, 0, time.FixedZone("", 6*3600))
	d := statuspage.Compose(booking.Figures{OpensAt: at})
	if d.OpensAt == nil || !d.OpensAt.Equal(at) || d.OpensAt.Location() != time.UTC {
		t.Errorf("scheduled: got %v, want %s in UTC", d.OpensAt, at)
	}
	for what, f := range map[string]booking.Figures{"open since then": {Open: true, OpensAt: at}, "not scheduled": {}} {
		if d := statuspage.Compose(f); d.OpensAt != nil {
			t.Errorf("%s: got %s, want none", what, d.OpensAt)
		}
	}
}

// The page reads this text.
func TestDocument_Shape(t *testing.T) {
	t.Parallel()
	d := statuspage.Compose(booking.Figures{
		Version: 9, At: time.Date(2026, 12, 1, 4, 0, 0, 0, time.UTC), Reason: "not_open", OpensAt: time.Date(2026, 12, 1, 5, 0, 0, 0, time.UTC),
		Cap: 2, Levels: []booking.LevelFigures{{ID: "N1", Name: "N1 Advanced", Cap: 2}},
	})
	got, err := json.Marshal(d)
	if err != nil {
		t.Fatal(err)
	}
	const want = `{"version":9,"updated_at":"2026-12-01T04:00:00Z","open":false,"opens_at":"2026-12-01T05:00:00Z","reason":"not_open",` +
		`"total":{"cap":2,"left":2},"levels":[{"id":"N1","name":"N1 Advanced","cap":2,"left":2,"full":false}]}`
	if diff := cmp.Diff(want, string(got)); diff != "" {
		t.Errorf("status.json (-want +got):\n%s", diff)
	}
}

func TestPublish_BurstIsOneDocument(t *testing.T) {
	s := open(t)
	p := s.process()
	p.mustPublish(t)
	s.wantPuts(t, "first", 1)
	s.wantLeft(t, 3, 5)
	s.endThrottle(t)
	p.mustPublish(t)
	s.wantPuts(t, "nothing changed", 1)
	s.admit(t, 1, "N1")
	p.mustPublish(t)
	s.wantPuts(t, "a change", 2)
	s.admit(t, 2, "N1")
	for range 5 {
		p.mustPublish(t)
		s.process().mustPublish(t)
	}
	s.wantPuts(t, "a change inside the throttle", 2)
	s.wantLeft(t, 2, 4)
	s.endThrottle(t)
	s.process().mustPublish(t) // any process
	s.wantPuts(t, "the throttle has ended", 3)
	s.wantLeft(t, 1, 3)
	if n := p.outcome(t, "published"); n != 2 {
		t.Errorf("published by the first process: got %d, want 2", n)
	}
}

func TestPublish_TransitionsAtOnceAndOnce(t *testing.T) {
	s := open(t)
	processes := []*process{s.process(), s.process(), s.process()}
	published := 0
	// step publishes from every process, and wants one document or none.
	step := func(what string, want int) statuspage.Document {
		t.Helper()
		var all sync.WaitGroup
		for _, p := range processes {
			for range 3 {
				all.Go(func() {
					if err := p.Publish(t.Context()); err != nil {
						t.Errorf("%s: %v", what, err)
					}
				})
			}
		}
		all.Wait()
		published += want
		s.wantPuts(t, what, published)
		return s.there(t)
	}
	step("opened", 1)
	s.admit(t, 1, "N1")
	s.admit(t, 2, "N1")
	step("no transition, within the throttle", 0)
	last := s.admit(t, 3, "N1")
	if d := step("N1 is full", 1); !d.Levels[0].Full || d.Levels[1].Full {
		t.Errorf("N1 is full: got %+v", d.Levels)
	}
	if err := s.Undo(t.Context(), bookingtest.Code(3), last.Attempt); err != nil {
		t.Fatal(err)
	}
	if d := step("a seat of it is free", 1); d.Levels[0].Full || d.Levels[0].Left != 1 {
		t.Errorf("a seat is free: got %+v", d.Levels)
	}
	s.admit(t, 3, "N1")
	step("N1 is full again", 1)
	s.admit(t, 4, "N2")
	s.admit(t, 5, "N2")
	if d := step("sold out", 1); d.Reason != "sold_out" || d.Total.Left != 0 || !d.Levels[1].Full {
		t.Errorf("sold out: got %+v", d)
	}
	if err := s.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if d := step("closed", 1); d.Open || d.Reason != "not_open" {
		t.Errorf("closed: got %+v", d)
	}
	at := s.clock.Now().Add(time.Hour)
	if err := s.OpenAt(t.Context(), at); err != nil {
		t.Fatal(err)
	}
	if d := step("scheduled", 1); d.Open || d.OpensAt == nil || d.OpensAt.UnixMilli() != at.UnixMilli() {
		t.Errorf("scheduled: got %+v, want opens_at %s", d, at)
	}
	s.clock.Advance(time.Hour)
	if d := step("opened by its schedule", 1); !d.Open || d.OpensAt != nil {
		t.Errorf("opened by its schedule: got %+v", d)
	}
	step("nothing more", 0)
}

// A publisher that is slow between its claim and its put does not put its older
// document over a newer one.
func TestPublish_OlderNeverWins(t *testing.T) {
	for name, published := range map[string]bool{"the first document of all": false, "over a document": true} {
		t.Run(name, func(t *testing.T) {
			s := open(t)
			slow, quick := s.process(), s.process()
			if published {
				quick.mustPublish(t)
				s.endThrottle(t)
			}
			s.admit(t, 1, "N1")
			arrived, free := make(chan struct{}), make(chan struct{})
			var once sync.Once
			s.objects.stall = func(int64) func() {
				wait := func() {}
				once.Do(func() { wait = func() { close(arrived); <-free } })
				return wait
			}
			result := make(chan error, 1)
			go func() { result <- slow.Publish(t.Context()) }()
			<-arrived
			s.admit(t, 2, "N1")
			s.admit(t, 3, "N1") // a transition: at once
			quick.mustPublish(t)
			s.wantLeft(t, 0, 2)
			close(free)
			if err := <-result; err != nil {
				t.Errorf("slow publisher: %v", err)
			}
			s.wantLeft(t, 0, 2)
			if n := slow.outcome(t, "older"); n != 1 {
				t.Errorf("documents given up as older: got %d, want 1", n)
			}
		})
	}
}

// Many processes, many changes, puts in any order: only ever forward, and the last
// document tells the last figures.
func TestPublish_RaceOnlyGoesForward(t *testing.T) {
	s := open(t)
	big := bookingtest.Sale()
	big.Cap, big.Levels[0].Cap = 200, 200
	if _, err := s.ApplySale(t.Context(), big, "", false); err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	for i := range 4 {
		p := s.process()
		all.Go(func() {
			for j := range 15 {
				s.admit(t, i*15+j+1, "N1")
				s.endThrottle(t)
				if err := p.Publish(t.Context()); err != nil {
					t.Errorf("publish: %v", err)
				}
			}
		})
	}
	all.Wait()
	s.endThrottle(t)
	s.process().mustPublish(t)
	s.wantLeft(t, 140, 140)
	if n := s.objects.count(); n < 2 {
		t.Errorf("documents: got %d, want some", n)
	}
}

// A process that claims and dies: its transition is published by another when the
// throttle ends.
func TestPublish_ClaimerThatDiesIsReplaced(t *testing.T) {
	s := open(t)
	if _, err := s.ClaimStatus(t.Context(), statuspage.Throttle); err != nil {
		t.Fatalf("claim of the process that dies: %v", err)
	}
	p := s.process()
	p.mustPublish(t)
	s.wantPuts(t, "while the claim stands", 0)
	s.endThrottle(t)
	p.mustPublish(t)
	s.wantPuts(t, "after it", 1)
	s.wantLeft(t, 3, 5)
}

// A process that claims and dies, and figures that are those of before again: its
// version may lie over the page after all, so a later one is published.
func TestPublish_ClaimThatIsLostIsOvertaken(t *testing.T) {
	s := open(t)
	p := s.process()
	p.mustPublish(t)
	row := s.admit(t, 1, "N1")
	s.endThrottle(t)
	lost, err := s.ClaimStatus(t.Context(), statuspage.Throttle)
	if err != nil {
		t.Fatalf("claim of the process that dies: %v", err)
	}
	if err := s.Undo(t.Context(), bookingtest.Code(1), row.Attempt); err != nil {
		t.Fatal(err)
	}
	p.mustPublish(t)
	s.wantPuts(t, "while the claim stands", 1)
	s.endThrottle(t)
	p.mustPublish(t)
	s.wantPuts(t, "after it", 2)
	if d := s.there(t); d.Version <= lost.Version {
		t.Errorf("version: got %d, want one after the lost %d", d.Version, lost.Version)
	}
	s.endThrottle(t)
	p.mustPublish(t)
	s.wantPuts(t, "once it is confirmed", 2)
}

func TestPublish_ObjectStoreDownThenUp(t *testing.T) {
	s := open(t)
	p := s.process()
	p.mustPublish(t)
	before := s.there(t)
	s.endThrottle(t)
	s.admit(t, 1, "N1")
	s.objects.breakDown(true)
	for range 3 {
		s.endThrottle(t)
		if err := p.Publish(t.Context()); !errors.Is(err, errPut) {
			t.Errorf("publish while the store is down: got %v, want its error", err)
		}
	}
	if diff := cmp.Diff(before, s.there(t)); diff != "" {
		t.Errorf("the last document changed (-before +after):\n%s", diff)
	}
	s.objects.breakDown(false)
	p.mustPublish(t)
	s.wantPuts(t, "while the claim stands", 1)
	s.endThrottle(t)
	p.mustPublish(t)
	s.wantLeft(t, 2, 4)
}

// The put was made and its reply lost: it is published again, with a version of
// its own.
func TestPublish_PutKeptButReportedLost(t *testing.T) {
	s := open(t)
	p := s.process()
	s.objects.kept = 1
	if err := p.Publish(t.Context()); !errors.Is(err, errKept) {
		t.Errorf("publish: got %v, want the put's error", err)
	}
	first := s.there(t).Version
	s.endThrottle(t)
	p.mustPublish(t)
	if again := s.there(t).Version; again <= first {
		t.Errorf("version: got %d after %d, want it to grow", again, first)
	}
	s.endThrottle(t)
	p.mustPublish(t)
	s.wantPuts(t, "confirmed", 2)
}

func TestPublish_RebuiltRedisGoesOnWithTheVersions(t *testing.T) {
	s := open(t)
	p := s.process()
	p.mustPublish(t)
	before := s.there(t).Version
	if err := s.rdb.FlushAll(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	if err := p.Publish(t.Context()); !errors.Is(err, booking.ErrLedgerUnknown) {
		t.Errorf("publish from an empty Redis: got %v, want that the ledger is unknown", err)
	}
	s.wantPuts(t, "while Redis is empty", 1)
	s.start(t)
	p.mustPublish(t)
	if after := s.there(t).Version; after <= before {
		t.Errorf("version: got %d after %d, want it to grow", after, before)
	}
	s.wantPuts(t, "after the rebuild", 2)
}

func TestPublish_DocumentThatCannotBeReadIsReplaced(t *testing.T) {
	s := open(t)
	if _, err := s.objects.Store.Put(t.Context(), statuspage.Key, []byte("{nothing"), "", ""); err != nil {
		t.Fatal(err)
	}
	s.process().mustPublish(t)
	s.wantLeft(t, 3, 5)
}

func TestPublish_NewerDocumentThatIsThereStays(t *testing.T) {
	s := open(t)
	newer := fmt.Sprintf(`{"version":%d,"total":{"cap":1,"left":1},"levels":[]}`, s.clock.Now().Add(time.Hour).UnixMilli())
	if _, err := s.objects.Store.Put(t.Context(), statuspage.Key, []byte(newer), "", ""); err != nil {
		t.Fatal(err)
	}
	p := s.process()
	p.mustPublish(t)
	body, _, err := s.objects.Store.Get(t.Context(), statuspage.Key)
	if string(body) != newer || err != nil {
		t.Errorf("document: got %s, %v, want %s as before", body, err, newer)
	}
	if n := p.outcome(t, "older"); n != 1 {
		t.Errorf("documents given up as older: got %d, want 1", n)
	}
}

// refusing is an object store in which somebody else is always faster.
type refusing struct{ *objects }

func (refusing) Put(context.Context, string, []byte, string, string) (string, error) {
	return "", objstore.ErrPreconditionFailed
}

func TestPublish_GivesUpWhenOthersAreAlwaysFaster(t *testing.T) {
	s := open(t)
	p := statuspage.New(s.Gate, refusing{s.objects}, slog.New(slog.DiscardHandler), prometheus.NewRegistry())
	if err := p.Publish(t.Context()); err == nil {
		t.Error("publish: got nil, want an error: nothing was put")
	}
	s.endThrottle(t)
	s.process().mustPublish(t)
	s.wantLeft(t, 3, 5)
}

func TestPublish_DamagedCounterLeavesNothing(t *testing.T) {
	s := open(t)
	p := s.process()
	p.mustPublish(t)
	if err := s.rdb.Del(t.Context(), prefix+"adm:level:N1").Err(); err != nil {
		t.Fatal(err)
	}
	p.mustPublish(t) // a level that closes is a transition
	s.wantLeft(t, 0, 5)
	if err := s.rdb.Set(t.Context(), prefix+"adm:total", "-3", 0).Err(); err != nil {
		t.Fatal(err)
	}
	p.mustPublish(t)
	s.wantLeft(t, 0, 0)
}

func TestPublish_NoPersonalData(t *testing.T) {
	s := open(t)
	row := s.admit(t, 1, "N1")
	s.process().mustPublish(t)
	body, _, err := s.objects.Store.Get(t.Context(), statuspage.Key)
	if err != nil {
		t.Fatal(err)
	}
	for _, word := range []string{bookingtest.Code(1), bookingtest.Email(1), row.Attempt, booking.CandidateHash(bookingtest.Code(1))} {
		if strings.Contains(string(body), word) {
			t.Errorf("document holds %q: %s", word, body)
		}
	}
}

// ledger is figures that the test changes, under the ledger's rules for claims, on
// the clock of the test's bubble.
type ledger struct {
	mu        sync.Mutex
	admitted  int
	published int
	version   int64
	throttle  time.Time
	down      bool
}

func (l *ledger) ClaimStatus(_ context.Context, throttle time.Duration) (booking.Figures, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.down {
		return booking.Figures{}, errPut
	}
	if l.admitted == l.published || time.Now().Before(l.throttle) {
		return booking.Figures{}, booking.ErrNothingToPublish
	}
	l.version++
	l.throttle = time.Now().Add(throttle)
	return booking.Figures{Version: l.version, Cap: 1000, Total: l.admitted, Levels: []booking.LevelFigures{{ID: "N1", Cap: 1000, Admitted: l.admitted}}}, nil
}

func (l *ledger) Published(_ context.Context, f booking.Figures) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.published = f.Total
	return nil
}

func (l *ledger) set(change func(*ledger)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	change(l)
}

// running is a publisher at work on the clock of the caller's bubble; end stops
// it.
func running(t *testing.T, l *ledger, o *objects) (p *statuspage.Publisher, end func()) {
	t.Helper()
	p = statuspage.New(l, o, slog.New(slog.DiscardHandler), prometheus.NewRegistry())
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- p.Run(ctx) }()
	return p, func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("run: got %v, want nil", err)
		}
	}
}

func TestRun_NeverMoreThanFiveSecondsBehind(t *testing.T) {
	t.Parallel()
	o := newObjects(t)
	synctest.Test(t, func(t *testing.T) {
		l := &ledger{published: -1}
		p, end := running(t, l, o)
		defer end()
		for i := range 20 {
			l.set(func(l *ledger) { l.admitted++ })
			if i%2 == 0 {
				p.Changed() // else nobody of this process has seen it
			}
			time.Sleep(5 * time.Second)
			synctest.Wait()
			if d := o.puts[len(o.puts)-1]; d.Total.Left != 1000-i-1 {
				t.Errorf("change %d, five seconds later: got %d left, want %d", i, d.Total.Left, 1000-i-1)
			}
		}
	})
}

// A rush of changes is one document in two seconds, and its last change is told.
func TestRun_RushIsThrottled(t *testing.T) {
	t.Parallel()
	o := newObjects(t)
	synctest.Test(t, func(t *testing.T) {
		l := &ledger{published: -1}
		p, end := running(t, l, o)
		defer end()
		for range 1000 { // ten seconds
			l.set(func(l *ledger) { l.admitted++ })
			p.Changed()
			time.Sleep(10 * time.Millisecond)
		}
		if n := o.count(); n < 5 || n > 7 {
			t.Errorf("documents in ten seconds: got %d, want one in two", n)
		}
		time.Sleep(5 * time.Second)
		synctest.Wait()
		if d := o.puts[len(o.puts)-1]; d.Total.Left != 0 {
			t.Errorf("five seconds after the rush: got %d left, want 0", d.Total.Left)
		}
	})
}

func TestRun_GoesOnAfterErrors(t *testing.T) {
	t.Parallel()
	o := newObjects(t)
	synctest.Test(t, func(t *testing.T) {
		l := &ledger{published: -1, down: true}
		_, end := running(t, l, o)
		defer end()
		time.Sleep(time.Minute)
		l.set(func(l *ledger) { l.down, l.admitted = false, 1 })
		o.breakDown(true)
		time.Sleep(time.Minute)
		if n := o.count(); n != 0 {
			t.Errorf("documents while everything is down: got %d, want 0", n)
		}
		o.breakDown(false)
		time.Sleep(5 * time.Second)
		synctest.Wait()
		if n := o.count(); n != 1 {
			t.Errorf("documents five seconds after: got %d, want 1", n)
		}
	})
}

// Changed is called on the way of a booking.
func TestChanged_NeverBlocks(t *testing.T) {
	t.Parallel()
	p := statuspage.New(&ledger{}, newObjects(t), slog.New(slog.DiscardHandler), prometheus.NewRegistry())
	for range 1000 {
		p.Changed() // nobody runs
	}
}
