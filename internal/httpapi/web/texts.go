package web

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"

	"golang.org/x/text/language"
)

// Language is a language that the page speaks, as its BCP 47 tag.
type Language string

// The languages, as texts/*.json are named.
const (
	English Language = "en"
	Bangla  Language = "bn"
)

// Languages are all of them, the one to fall back on first.
func Languages() []Language { return []Language{English, Bangla} }

// Text is what a person reads of an outcome or of the state of a booking.
type Text struct {
	Title   string `json:"title"`
	Message string `json:"message"`
}

// words are a language's file.
type words struct {
	Language string `json:"language"`
	// Review is "unreviewed" until somebody whose language it is has read the file.
	Review string `json:"review"`
	// UI are the page's own texts.
	UI map[string]string `json:"ui"`
	// Answers are by error slug of POST /book and state of GET /booking/.
	Answers map[string]Text `json:"answers"`
}

var (
	texts = map[Language]*words{English: mustWords(English), Bangla: mustWords(Bangla)}

	matcher = language.NewMatcher([]language.Tag{language.English, language.Bengali}) // as Languages
)

func mustWords(l Language) *words {
	var w words
	if err := json.Unmarshal([]byte(asset("texts/"+string(l)+".json")), &w); err != nil {
		panic(fmt.Sprintf("texts of %s: %v", l, err)) // a build without its words
	}
	return &w
}

// Accept is the language that suits an Accept-Language header best (RFC 9110,
// 12.5.4); English when none of ours does.
func Accept(header string) Language {
	_, i := language.MatchStrings(matcher, header)
	return Languages()[i]
}

// Unreviewed are the languages whose words nobody who speaks them has read yet.
func Unreviewed() []Language {
	var list []Language
	for _, l := range Languages() {
		if texts[l].Review != "" {
			list = append(list, l)
		}
	}
	return list
}

// Say gives the words for an error slug of POST /book or a state of
// GET /booking/. "closed" is told by its reason ("not_open", "sold_out"),
// "duplicate" also as "duplicate_payable" (a payment link is there),
// "duplicate_working" (the first request is still at work) and
// "duplicate_paid"; "refused" also by why ("refused_balance"). Any other key is
// "internal".
func Say(l Language, key string) Text {
	if t, ok := texts[l].Answers[key]; ok {
		return t
	}
	return texts[l].Answers["internal"]
}

// ui is one of the page's own texts.
func ui(l Language, key string) (string, error) {
	t, ok := texts[l].UI[key]
	if !ok {
		return "", fmt.Errorf("texts of %s: ui has no %q", l, key)
	}
	return t, nil
}

// fill puts a value where {name} stands.
func fill(text, name, value string) string { return strings.ReplaceAll(text, "{"+name+"}", value) }

// inTime is the text of that key with a time in it.
func inTime(l Language, key string, seconds int) string {
	return fill(texts[l].UI[key], "time", span(l, seconds))
}

// span says a number of seconds in two units at most, and never more than there are:
// who comes to an opening comes early, who pays pays in time.
func span(l Language, seconds int) string {
	minutes, hours := seconds/60, seconds/3600
	switch {
	case seconds < 120:
		return count(l, seconds, "second")
	case minutes < 120:
		return count(l, minutes, "minute")
	case hours < 48:
		return join(count(l, hours, "hour"), minutes%60, count(l, minutes%60, "minute"))
	}
	return join(count(l, hours/24, "day"), hours%24, count(l, hours%24, "hour"))
}

// join leaves out a part that is none.
func join(big string, n int, small string) string {
	if n == 0 {
		return big
	}
	return big + " " + small
}

func count(l Language, n int, unit string) string {
	if n != 1 {
		unit += "s"
	}
	return fill(texts[l].UI["n_"+unit], "n", digits(l, n))
}

// digits writes a number in the language's own figures.
func digits(l Language, n int) string {
	s := strconv.Itoa(n)
	if l != Bangla {
		return s
	}
	return strings.Map(func(r rune) rune { return r - '0' + '০' }, s)
}
