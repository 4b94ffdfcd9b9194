package app

import "testing"

func TestTrimmer_GivesMemoryBackOnceAfterARush(t *testing.T) {
	t.Parallel()
	const mib = 1 << 20
	var allocated uint64
	freed := 0
	trim := trimmer{allocated: func() uint64 { return allocated }, free: func() { freed++ }}
	for i, step := range []struct {
		what  string
		bytes uint64
		freed int
	}{
		{"start", 20 * mib, 0},
		{"rush", 500 * mib, 0},
		{"rush", 500 * mib, 0},
		{"idle after it", 1 * mib, 1},
		{"idle", 1 * mib, 1},
		{"idle", 3 * mib, 1},
		{"idle", 3 * mib, 1},
		{"idle, and enough garbage again", 3 * mib, 2},
		{"a short rush", 7 * mib, 2},
		{"idle after it, little garbage", 0, 2},
		{"idle, and enough garbage again", 1 * mib, 3},
	} {
		allocated += step.bytes
		trim.look()
		if freed != step.freed {
			t.Errorf("step %d, %s: got memory given back %d times, want %d", i, step.what, freed, step.freed)
		}
	}
}
