package salefile

import "hash/maphash"

// fingerprints remember every row by hashes rather than by text, so that two million
// rows take at most 40 MB: 16 bytes a slot in tables of open addressing that are
// at least four fifths full once they have grown. There are 256 of them, which grow
// one at a time and by an eighth, so that growing needs next to nothing beside them.
//
// The seed is random and another one in each reading: nobody can make a file whose
// codes collide. Two of two million codes share their 64 bits in one load of nine
// million; that load is refused, and goes through when repeated (were their e-mail
// hashes equal too, one of the two would be taken for a repetition: once in 10^16
// loads). Two addresses of one code are taken for equal once in four thousand million
// times.
type fingerprints struct {
	seed   maphash.Seed
	shards [256]shard
}

type shard struct {
	slots []fingerprint
	used  int
}

// fingerprint is one row; line 0 is an empty slot.
type fingerprint struct {
	code        uint64
	email, line uint32
}

// meeting says how a row stands to the rows before it.
type meeting int

const (
	fresh   meeting = iota // its code is new
	same                   // code and address are those of an earlier row
	another                // the code is an earlier row's, the address is not
)

const firstSlots = 64

func newFingerprints() *fingerprints { return &fingerprints{seed: maphash.MakeSeed()} }

// add remembers a row; unless it is fresh, it says on which line its code was.
func (f *fingerprints) add(c Candidate) (line int, m meeting) {
	row := fingerprint{
		code:  maphash.String(f.seed, c.Code),
		email: uint32(maphash.String(f.seed, c.Email)), // half of a hash is meant
		line:  uint32(c.Line),                          // at most maxLines
	}
	s := &f.shards[row.code>>56]
	if s.used >= len(s.slots)*9/10 {
		s.grow()
	}
	at := s.find(row.code)
	switch old := *at; {
	case old.line == 0:
		*at = row
		s.used++
		return 0, fresh
	case old.email != row.email:
		return int(old.line), another
	default:
		return int(old.line), same
	}
}

// find is the slot of a code, or the empty one where it belongs. There always is one.
func (s *shard) find(code uint64) *fingerprint {
	// The eight bits that chose the shard are equal here and are left out.
	i := int(code >> 24 & (1<<32 - 1) * uint64(len(s.slots)) >> 32)
	for s.slots[i].line != 0 && s.slots[i].code != code {
		if i++; i == len(s.slots) {
			i = 0
		}
	}
	return &s.slots[i]
}

func (s *shard) grow() {
	old := s.slots
	s.slots = make([]fingerprint, max(firstSlots, len(old)*9/8))
	for _, row := range old {
		if row.line != 0 {
			*s.find(row.code) = row
		}
	}
}
