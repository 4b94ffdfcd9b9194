package web_test

import (
	"encoding/json"
	"html"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"holdfast/internal/booking"
	"holdfast/internal/httpapi/web"
)

// slugs are all that POST /book can answer, "closed" and "duplicate" by what
// else they say.
var slugs = []string{
	"invalid_request", "invalid_level", "invalid_code", "email_mismatch",
	"duplicate", "duplicate_payable", "duplicate_working", "duplicate_refused", "duplicate_paid",
	"level_full", "sold_out", "not_open", "try_again", "payment_unavailable",
	"idempotency_mismatch", "body_too_large", "unsupported_media_type",
	"method_not_allowed", "not_found", "no_seat", "internal",
}

// states are all that the result page shows: those of GET /booking/, "refused" by its
// reason too, and those in which there is no answer.
var states = slices.Concat([]string{
	string(booking.ViewHeld), string(booking.ViewPaying), string(booking.ViewPaid), string(booking.ViewReleased), string(booking.ViewRefundDue),
	string(booking.ViewRefused), "checking", "unknown", "return_busy", "returning",
}, refusals())

// refusals are the states of a refused payment whose reason is known.
func refusals() []string {
	var all []string
	for _, r := range booking.Refusals() {
		all = append(all, "refused_"+string(r))
	}
	return all
}

// language is a file of texts.
type language struct {
	Language string              `json:"language"`
	Review   string              `json:"review"`
	UI       map[string]string   `json:"ui"`
	Answers  map[string]web.Text `json:"answers"`
}

func everyText(t *testing.T) map[web.Language]language {
	t.Helper()
	all := map[web.Language]language{}
	for _, l := range web.Languages() {
		var w language
		b, err := os.ReadFile(filepath.Join("texts", string(l)+".json"))
		if err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal(b, &w); err != nil {
			t.Fatalf("texts of %s: %v", l, err)
		}
		all[l] = w
	}
	return all
}

// flat is every text by its place.
func (l language) flat() map[string]string {
	m := map[string]string{"language": l.Language}
	for key, text := range l.UI {
		m["ui."+key] = text
	}
	for key, text := range l.Answers {
		m["answers."+key+".title"], m["answers."+key+".message"] = text.Title, text.Message
	}
	return m
}

var placeholder = regexp.MustCompile(`\{[^{}]*\}`)

// textProblems are where a translation is not whole.
func textProblems(from, to language) []string {
	var problems []string
	a, b := from.flat(), to.flat()
	for _, key := range slices.Sorted(maps.Keys(a)) {
		text, there := b[key]
		want, got := placeholder.FindAllString(a[key], -1), placeholder.FindAllString(text, -1)
		slices.Sort(want)
		slices.Sort(got)
		switch {
		case !there:
			problems = append(problems, key+": is missing")
		case strings.TrimSpace(text) == "" || strings.TrimSpace(a[key]) == "":
			problems = append(problems, key+": is empty")
		case !slices.Equal(slices.Compact(want), slices.Compact(got)):
			problems = append(problems, key+": has other placeholders")
		}
	}
	for _, key := range slices.Sorted(maps.Keys(b)) {
		if _, there := a[key]; !there {
			problems = append(problems, key+": is there alone")
		}
	}
	return problems
}

func TestTexts_AreWholeInBothLanguages(t *testing.T) {
	t.Parallel()
	all := everyText(t)
	for _, p := range textProblems(all[web.English], all[web.Bangla]) {
		t.Errorf("texts of bn beside en: %s", p)
	}
	if all[web.English].Review != "" || all[web.Bangla].Review != "unreviewed" {
		t.Errorf("review: got %q and %q, want nothing for en, and unreviewed for bn until a speaker has read it", all[web.English].Review, all[web.Bangla].Review)
	}
	if diff := cmp.Diff([]web.Language{web.Bangla}, web.Unreviewed()); diff != "" {
		t.Errorf("Unreviewed (-want +got):\n%s", diff)
	}
	bengali := regexp.MustCompile(`\p{Bengali}`)
	for key, text := range all[web.Bangla].flat() {
		if !bengali.MatchString(placeholder.ReplaceAllString(text, "")) && key != "language" && text == all[web.English].flat()[key] && strings.Contains(text, " ") {
			t.Errorf("%s: got the English sentence, want a Bangla one", key)
		}
	}
}

// The check above is worth what it finds.
func TestTexts_CheckFindsWhatItLooksFor(t *testing.T) {
	t.Parallel()
	whole := language{Language: "A", UI: map[string]string{"a": "{n} of {m}"}, Answers: map[string]web.Text{"b": {Title: "b", Message: "b"}}}
	for name, c := range map[string]struct {
		other language
		want  []string
	}{
		"whole":       {language{Language: "B", UI: map[string]string{"a": "{m}: {n}"}, Answers: whole.Answers}, nil},
		"missing":     {language{Language: "B", UI: map[string]string{"a": "{m}: {n}"}}, []string{"answers.b.message: is missing", "answers.b.title: is missing"}},
		"alone":       {language{Language: "B", UI: map[string]string{"a": "{m}: {n}", "c": "c"}, Answers: whole.Answers}, []string{"ui.c: is there alone"}},
		"empty":       {language{Language: "B", UI: map[string]string{"a": " "}, Answers: whole.Answers}, []string{"ui.a: is empty"}},
		"placeholder": {language{Language: "B", UI: map[string]string{"a": "{n} of {n}"}, Answers: whole.Answers}, []string{"ui.a: has other placeholders"}},
	} {
		if diff := cmp.Diff(c.want, textProblems(whole, c.other)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

func TestSay_EverySlugAndStateHasItsOwnWords(t *testing.T) {
	t.Parallel()
	for _, l := range web.Languages() {
		for _, key := range slices.Concat(slugs, states) {
			got := web.Say(l, key)
			if got.Title == "" || got.Message == "" {
				t.Errorf("%s, %s: got %+v, want a title and a message", l, key, got)
			}
			if key != "internal" && got == web.Say(l, "internal") {
				t.Errorf("%s, %s: got the words of internal, want its own", l, key)
			}
		}
		if got := web.Say(l, "nonsense"); got != web.Say(l, "internal") {
			t.Errorf("%s, unknown slug: got %+v, want the words of internal", l, got)
		}
	}
}

// What the page cannot know it neither promises nor denies: whether a seat is held when a
// payment could not be started (after a refused one it is), whether a booking ended unpaid
// (it may have been replaced), and whether money is safe while a return was not heard.
func TestTexts_ClaimNothingThatThePageDoesNotKnow(t *testing.T) {
	t.Parallel()
	english := everyText(t)[web.English].Answers
	for key, claim := range map[string]string{
		"payment_unavailable": `no seat|held`,
		"duplicate":           `do not pay|confirmation comes`,
		"released":            `No payment came`,
		"return_busy":         `nothing is lost`,
		"returning":           `nothing is lost`,
		"unknown":             `nothing is lost`,
		"busy":                `people are here`,
		"offline":             `As soon as`,
	} {
		text := english[key].Title + " " + english[key].Message
		if got := regexp.MustCompile(claim).FindString(text); got != "" || english[key].Message == "" {
			t.Errorf("en, %s: got %q, want nothing of %q", key, text, claim)
		}
	}
	for _, l := range web.Languages() {
		all := everyText(t)[l]
		// Who has another seat, or none that can be looked up, is led to what finds it, by
		// the first words of the button at least.
		name, _, _ := strings.Cut(all.UI["have_seat"], ":")
		for _, key := range []string{"duplicate", "unknown", "return_busy"} {
			if !strings.Contains(all.Answers[key].Message, name) {
				t.Errorf("%s, %s: got %q, want %q in it", l, key, all.Answers[key].Message, name)
			}
		}
	}
}

// What the script swaps when the language is changed must be among the texts, and the
// page must begin with the English of it.
func TestPages_EveryMarkedTextIsAmongTheTexts(t *testing.T) {
	t.Parallel()
	english := everyText(t)[web.English].UI
	text := regexp.MustCompile(`<[a-z0-9]+\b[^>]*\sdata-t="([^"]*)"[^>]*>([^<]*)`)
	attributes := regexp.MustCompile(`(<[a-z0-9]+\b[^>]*)\sdata-t-attr="([^"]*)"([^>]*>)`)
	for _, f := range build(t, demo(t)).Files() {
		page := string(f.Body)
		for _, m := range text.FindAllStringSubmatch(page, -1) {
			if want := english[m[1]]; want == "" || html.UnescapeString(m[2]) != want {
				t.Errorf("%s: data-t %s: got %q on the page, want the text %q", f.Name, m[1], m[2], want)
			}
		}
		for _, m := range attributes.FindAllStringSubmatch(page, -1) {
			for pair := range strings.FieldsSeq(m[2]) {
				name, key, _ := strings.Cut(pair, ":")
				if want := english[key]; want == "" || !strings.Contains(html.UnescapeString(m[1]+m[3]), name+`="`+want+`"`) {
					t.Errorf("%s: data-t-attr %s: got none with the text %q", f.Name, pair, want)
				}
			}
		}
	}
}

// A key that the script names and nobody wrote is an empty place on somebody's phone.
func TestScript_NamesOnlyTextsThatExist(t *testing.T) {
	t.Parallel()
	english := everyText(t)[web.English]
	script := read(t, "page.js")
	named := 0
	for _, m := range regexp.MustCompile(`\bt(?:Data)?\('([a-z_]+)'[,)]`).FindAllStringSubmatch(script, -1) {
		if named++; english.UI[m[1]] == "" {
			t.Errorf("page.js: names the text %q, which there is not", m[1])
		}
	}
	for _, m := range regexp.MustCompile(`\b(?:words|say|tell)\('([a-z_]+)'[,)]`).FindAllStringSubmatch(script, -1) {
		if named++; english.Answers[m[1]] == (web.Text{}) {
			t.Errorf("page.js: names the answer %q, which there is not", m[1])
		}
	}
	if named < 10 {
		t.Errorf("page.js: got %d texts named, want ten at least: has the script another way to name them", named)
	}
}
