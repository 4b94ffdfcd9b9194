package salefile_test

import (
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"holdfast/internal/booking"
	"holdfast/internal/salefile"
)

const twoLevels = `name: demo-2026
currency: BDT
cap: 10
hold: 8m
levels:
  - {id: N1, name: "N1 Advanced", cap: 4, fee: "1500.00"}
  - id: N2
    cap: 8
    fee: 1250.5
`

func TestSale_ReadsEveryField(t *testing.T) {
	t.Parallel()
	got, err := salefile.Sale(strings.NewReader(twoLevels))
	if err != nil {
		t.Fatalf("Sale: got error %v, want none", err)
	}
	want := booking.Sale{
		Name: "demo-2026", Currency: "BDT", Cap: 10, Hold: 8 * time.Minute,
		Levels: []booking.Level{
			{ID: "N1", Name: "N1 Advanced", Cap: 4, Fee: 150000},
			{ID: "N2", Name: "N2", Cap: 8, Fee: 125050},
		},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("sale (-want +got):\n%s", diff)
	}
}

func TestSale_TitleIsWhatPeopleRead(t *testing.T) {
	t.Parallel()
	for title, want := range map[string]string{
		"":                           "demo-2026",
		"title: Examination, 2026\n": "Examination, 2026",
		"title: \"ভাষা পরীক্ষা ২০২৬\"\n": "ভাষা পরীক্ষা ২০২৬",
	} {
		got, err := salefile.Sale(strings.NewReader(twoLevels + title))
		if err != nil || got.Called() != want || got.Name != "demo-2026" {
			t.Errorf("%q: got %q of %q and error %v, want %q of demo-2026", title, got.Called(), got.Name, err, want)
		}
	}
}

func TestSale_HoldDefaults(t *testing.T) {
	t.Parallel()
	got, err := salefile.Sale(strings.NewReader(strings.Replace(twoLevels, "hold: 8m\n", "", 1)))
	if err != nil || got.Hold != booking.DefaultHold {
		t.Errorf("hold: got %s and error %v, want %s", got.Hold, err, booking.DefaultHold)
	}
}

func TestSale_ExampleIsTheDemo(t *testing.T) {
	t.Parallel()
	f, err := os.Open("../../examples/sale.yaml")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	sale, err := salefile.Sale(f)
	if err != nil {
		t.Fatalf("examples/sale.yaml: %v", err)
	}
	if diff := cmp.Diff([]string{"N1", "N2", "N3", "N4", "N5"}, sale.LevelIDs()); diff != "" {
		t.Errorf("levels (-want +got):\n%s", diff)
	}
	sum := 0
	for _, l := range sale.Levels {
		sum += l.Cap
	}
	if sale.Cap != 20700 || sum <= sale.Cap {
		t.Errorf("caps: got %d in all and %d over the levels, want 20700 and more than that", sale.Cap, sum)
	}
}

func TestSale_RefusesWithLines(t *testing.T) {
	t.Parallel()
	replace := func(old, with string) string { return strings.Replace(twoLevels, old, with, 1) }
	for _, tt := range []struct {
		name, in string
		want     []string // each in the error's text
	}{
		{"unknown key", twoLevels + "quota: 3\n", []string{`line 10: key "quota" is unknown in the sale`}},
		{"unknown key of a level", replace("    cap: 8\n", "    cap: 8\n    seats: 9\n"), []string{`line 9: key "seats" is unknown in the level`}},
		{"key twice", twoLevels + "cap: 11\n", []string{`line 10: key "cap" is already on line 3`}},
		{"no cap", replace("cap: 10\n", ""), []string{"line 1: the sale has no cap"}},
		{"no cap in a level", replace("    cap: 8\n", ""), []string{"line 7: the level has no cap"}},
		{"empty cap", replace("cap: 10\n", "cap:\n"), []string{"line 3: cap: want a whole number"}},
		{"octal cap", replace("cap: 10\n", "cap: 010\n"), []string{`line 3: cap "010": want a whole number`}},
		{"hexadecimal cap", replace("cap: 10\n", "cap: 0x10\n"), []string{`line 3: cap "0x10"`}},
		{"grouped cap", replace("cap: 10\n", "cap: 20,700\n"), []string{`line 3: cap "20,700"`}},
		{"huge cap", replace("cap: 10\n", "cap: 99999999999999999999\n"), []string{"line 3: cap"}},
		{"negative cap", replace("cap: 10\n", "cap: -1\n"), []string{"cap -1: want 0 to"}},
		{"no fee", replace("    fee: 1250.5\n", ""), []string{`level "N2": fee 0.00: want more than 0`}},
		{"fee as exponent", replace("1250.5", "1e3"), []string{`line 9: fee "1e3": not an amount`}},
		{"fee with three decimals", replace("1250.5", "1.005"), []string{`line 9: fee "1.005"`}},
		{"fee as list", replace("1250.5", "[1]"), []string{"line 9: fee: want an amount"}},
		{"hold without unit", replace("8m", "600"), []string{`line 4: hold "600": want a duration with its unit`}},
		{"hold too long", replace("8m", "25h"), []string{"hold 25h0m0s: want"}},
		{"line break in a name", replace("N1 Advanced", `N1\r\nBcc: x`), []string{"line 6: name: want at most 80 printable characters"}},
		{"long name", replace("N1 Advanced", strings.Repeat("x", 81)), []string{"line 6: name: want at most 80"}},
		{"line break in the title", twoLevels + "title: \"A\\r\\nBcc: x\"\n", []string{"line 10: title: want at most 120 printable characters"}},
		{"long title", twoLevels + "title: " + strings.Repeat("অ", 121) + "\n", []string{"line 10: title: want at most 120"}},
		{"title of long letters", twoLevels + "title: " + strings.Repeat("𑄃", 101) + "\n", []string{"line 10: title: want at most 120"}},
		{"title as list", twoLevels + "title: [x]\n", []string{"line 10: title: want a text"}},
		{"alias", replace("name: demo-2026", "name: &a demo\nanchor: *a"), []string{`line 2: key "anchor" is unknown`}},
		{"alias as value", replace("currency: BDT", "currency: *a"), []string{"unknown anchor"}},
		{"merge key", twoLevels + "<<: {cap: 1}\n", []string{`line 10: key "<<" is unknown`}},
		{"levels as mapping", "name: a\ncurrency: BDT\ncap: 1\nlevels: {N1: 2}\n", []string{"line 4: levels: want a list"}},
		{"level as text", "name: a\ncurrency: BDT\ncap: 1\nlevels: [N1]\n", []string{"line 4: the level: want keys and values"}},
		{"level twice", replace("id: N2", "id: N1"), []string{`level "N1": named twice`}},
		{"not YAML", "name: a: b\n", []string{"line 1: "}},
		{"a list", "- 1\n", []string{"line 1: the sale: want keys and values: cap, currency, hold, levels, name, title"}},
		{"empty", "", []string{"no documents"}},
		{"two documents", twoLevels + "---\n" + twoLevels, []string{"multiple"}},
		{"too long", strings.Repeat("#", 1<<20+1), []string{"longer than 1048576 bytes"}},
		{
			"everything at once", "cap: x\nhold: y\nfoo: 1\nlevels:\n  - {id: N1, cap: z, fee: w}\n",
			[]string{`name ""`, `currency ""`, `line 1: cap "x"`, `line 2: hold "y"`, `line 3: key "foo"`, `line 5: cap "z"`, `line 5: fee "w"`},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			sale, err := salefile.Sale(strings.NewReader(tt.in))
			if err == nil {
				t.Fatalf("got %+v, want an error with %q", sale, tt.want)
			}
			for _, w := range tt.want {
				if !strings.Contains(err.Error(), w) {
					t.Errorf("error: got %q, want %q in it", err, w)
				}
			}
		})
	}
}

func TestSale_ReadErrorIsNotAnEmptySale(t *testing.T) {
	t.Parallel()
	broken := errors.New("disk gone")
	if _, err := salefile.Sale(brokenReader{broken}); !errors.Is(err, broken) {
		t.Errorf("error: got %v, want %v", err, broken)
	}
}

type brokenReader struct{ err error }

func (r brokenReader) Read([]byte) (int, error) { return 0, r.err }

func FuzzSale(f *testing.F) {
	f.Add(twoLevels)
	f.Add("cap: x\nlevels: [{id: N1}]\n")
	f.Add("a: &a [*a]\n")
	f.Fuzz(func(t *testing.T, in string) {
		sale, err := salefile.Sale(strings.NewReader(in))
		if err != nil {
			return
		}
		if err := sale.Validate(); err != nil {
			t.Errorf("an accepted sale is invalid: %v", err)
		}
		for _, l := range sale.Levels {
			if l.Name == "" || strings.ContainsAny(l.Name, "\r\n") {
				t.Errorf("level name: got %q, want one line of text", l.Name)
			}
		}
	})
}
