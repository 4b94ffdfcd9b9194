package salefile

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"go.yaml.in/yaml/v4"

	"holdfast/internal/booking"
)

// maxSaleFile bounds a sale file; a real one has a few hundred bytes.
const maxSaleFile = 1 << 20

// What a person reads as a level's name and as the sale's title, in characters at most;
// and either in bytes, as a mail's header bears them.
const (
	maxLevelName  = 80
	maxTitle      = 120
	maxShownBytes = 400
)

// Sale reads a sale file and validates it. hold defaults to
// booking.DefaultHold and a level's name to its id; everything else must be
// there. Everything that is wrong is told at once, joined with errors.Join;
// what belongs to a line is a *LineError.
func Sale(r io.Reader) (booking.Sale, error) {
	text, err := io.ReadAll(io.LimitReader(r, maxSaleFile+1))
	if err != nil {
		return booking.Sale{}, fmt.Errorf("read sale file: %w", err)
	}
	if len(text) > maxSaleFile {
		return booking.Sale{}, fmt.Errorf("sale file: longer than %d bytes", maxSaleFile)
	}
	var doc yaml.Node
	if err := yaml.Load(text, &doc); err != nil {
		return booking.Sale{}, yamlError(err)
	}
	var p parser
	sale := p.sale(&doc)
	if err := errors.Join(append(p.errs, sale.Validate())...); err != nil {
		return booking.Sale{}, fmt.Errorf("sale file: %w", err)
	}
	return sale, nil
}

// yamlError keeps the library's reason and line and drops its own format.
func yamlError(err error) error {
	var load *yaml.LoadError
	if !errors.As(err, &load) {
		return fmt.Errorf("sale file: %w", err)
	}
	reason := errors.New(strings.TrimPrefix(load.Message, "yaml: "))
	if load.Mark.Line > 0 {
		reason = &LineError{Line: load.Mark.Line, Err: reason}
	}
	return fmt.Errorf("sale file: %w", reason)
}

// parser walks the document's nodes rather than decoding into a struct: so
// every complaint has its line and an operator's words, an alias or a merge
// key is refused, and no number is read as octal or hexadecimal. A number that
// was complained about becomes one that Validate accepts.
type parser struct{ errs []error }

func (p *parser) bad(n *yaml.Node, format string, args ...any) {
	p.errs = append(p.errs, lineErrorf(n.Line, format, args...))
}

func (p *parser) sale(n *yaml.Node) booking.Sale {
	if n.Kind == yaml.DocumentNode && len(n.Content) == 1 {
		n = n.Content[0]
	}
	s := booking.Sale{Hold: booking.DefaultHold}
	p.mapping(n, "the sale", "cap", map[string]func(*yaml.Node){
		"name":     func(v *yaml.Node) { s.Name = p.text(v, "name") },
		"title":    func(v *yaml.Node) { s.Title = p.line(v, "title", maxTitle) },
		"currency": func(v *yaml.Node) { s.Currency = p.text(v, "currency") },
		"cap":      func(v *yaml.Node) { s.Cap = p.whole(v, "cap") },
		"hold":     func(v *yaml.Node) { s.Hold = p.duration(v, "hold") },
		"levels": func(v *yaml.Node) {
			if v.Kind != yaml.SequenceNode {
				p.bad(v, "levels: want a list of levels, each with id, name, cap and fee")
				return
			}
			for _, item := range v.Content {
				s.Levels = append(s.Levels, p.level(item))
			}
		},
	})
	return s
}

func (p *parser) level(n *yaml.Node) booking.Level {
	var l booking.Level
	p.mapping(n, "the level", "cap", map[string]func(*yaml.Node){
		"id":   func(v *yaml.Node) { l.ID = p.text(v, "id") },
		"name": func(v *yaml.Node) { l.Name = p.line(v, "name", maxLevelName) },
		"cap":  func(v *yaml.Node) { l.Cap = p.whole(v, "cap") },
		"fee":  func(v *yaml.Node) { l.Fee = p.money(v, "fee") },
	})
	if l.Name == "" {
		l.Name = l.ID
	}
	return l
}

// mapping hands each value to the function of its key. Unknown and repeated
// keys are complaints, and so is the absence of the required one (what else is
// missing, Validate tells).
func (p *parser) mapping(n *yaml.Node, what string, required string, known map[string]func(*yaml.Node)) {
	if n.Kind != yaml.MappingNode {
		p.bad(n, "%s: want keys and values: %s", what, list(known))
		return
	}
	seen := map[string]int{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i], n.Content[i+1]
		read, ok := known[key.Value]
		switch {
		case key.Kind != yaml.ScalarNode || !ok:
			p.bad(key, "key %.40q is unknown in %s: want %s", key.Value, what, list(known))
			continue
		case seen[key.Value] != 0:
			p.bad(key, "key %q is already on line %d", key.Value, seen[key.Value])
			continue
		}
		seen[key.Value] = key.Line
		read(value)
	}
	if seen[required] == 0 {
		p.bad(n, "%s has no %s", what, required)
	}
}

func list(known map[string]func(*yaml.Node)) string {
	return strings.Join(slices.Sorted(maps.Keys(known)), ", ")
}

// scalar takes the text as it was written, whatever YAML would make of it.
func (p *parser) scalar(n *yaml.Node, key, want string) (string, bool) {
	if n.Kind != yaml.ScalarNode || n.Tag == "!!null" {
		p.bad(n, "%s: want %s", key, want)
		return "", false
	}
	return n.Value, true
}

func (p *parser) text(n *yaml.Node, key string) string {
	s, _ := p.scalar(n, key, "a text")
	return s
}

// line refuses line breaks and control characters: the text goes into pages, mail
// headers and logs. The joiners that Indic scripts are written with may stay.
func (p *parser) line(n *yaml.Node, key string, most int) string {
	s, ok := p.scalar(n, key, "a text")
	if !ok {
		return ""
	}
	unprintable := strings.ContainsFunc(s, func(r rune) bool {
		return !unicode.IsPrint(r) && r != '\u200c' && r != '\u200d'
	})
	if s != strings.TrimSpace(s) || unprintable || utf8.RuneCountInString(s) > most || len(s) > maxShownBytes {
		p.bad(n, "%s: want at most %d printable characters and %d bytes on one line, with no space around them", key, most, maxShownBytes)
		return ""
	}
	return s
}

func (p *parser) whole(n *yaml.Node, key string) int {
	const want = "a whole number in plain digits, such as 20700"
	s, ok := p.scalar(n, key, want)
	if !ok {
		return 0
	}
	v, err := strconv.Atoi(s)
	if err != nil || strconv.Itoa(v) != s {
		p.bad(n, "%s %.40q: want %s", key, s, want)
		return 0
	}
	return v
}

func (p *parser) duration(n *yaml.Node, key string) time.Duration {
	const want = "a duration with its unit, such as 10m"
	s, ok := p.scalar(n, key, want)
	if !ok {
		return booking.DefaultHold
	}
	d, err := time.ParseDuration(s)
	if err != nil {
		p.bad(n, "%s %.40q: want %s", key, s, want)
		return booking.DefaultHold
	}
	return d
}

func (p *parser) money(n *yaml.Node, key string) booking.Money {
	s, ok := p.scalar(n, key, "an amount, such as 1500.00")
	if !ok {
		return 1
	}
	m, err := booking.ParseMoney(s)
	if err != nil {
		p.bad(n, "%s %w", key, err)
		return 1
	}
	return m
}
