package main_test

import (
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// block is one ```sh block of a page, and the answers that the ```text block behind it
// wants.
type block struct {
	name     string
	commands []command
	want     []string
}

// command is one line of a block, with what its comment says of it.
type command struct {
	line      int
	text      string
	answers   []string
	exit      int
	interrupt bool
}

var (
	assignment = regexp.MustCompile(`^[A-Z][A-Z_]*=`)
	answer     = regexp.MustCompile(`^answer: (.+)$`)
	exitStatus = regexp.MustCompile(`^exit status ([0-9]+): .`)
)

// blocks reads a page's blocks in order; each has a name.
func blocks(t *testing.T, text string) (list []block) {
	t.Helper()
	in := ""
	for i, line := range strings.Split(text, "\n") {
		fence, isFence := strings.CutPrefix(line, "```")
		kind, name, _ := strings.Cut(fence, " ")
		switch {
		case isFence && in != "":
			in = ""
		case isFence:
			in = kind
			if kind == "sh" {
				if name == "" {
					t.Fatalf("line %d: a ```sh block without a name", i+1)
				}
				list = append(list, block{name: name})
			} else if kind != "text" || len(list) == 0 || len(list[len(list)-1].want) > 0 {
				t.Fatalf("line %d: got a block of %q, want sh, or one of text behind it", i+1, kind)
			}
		case in == "sh":
			b := &list[len(list)-1]
			b.commands = append(b.commands, readCommand(t, i+1, line))
		case in == "text":
			b := &list[len(list)-1]
			b.want = append(b.want, line)
		}
	}
	return list
}

// readCommand reads a line, and what its comment says. The line is run with its comment.
func readCommand(t *testing.T, number int, line string) command {
	t.Helper()
	c := command{line: number, text: line}
	_, comment, has := strings.Cut(line, " # ")
	if !has {
		return c
	}
	switch {
	case answer.MatchString(comment):
		c.answers = strings.Split(answer.FindStringSubmatch(comment)[1], "; ")
	case exitStatus.MatchString(comment):
		c.exit, _ = strconv.Atoi(exitStatus.FindStringSubmatch(comment)[1]) // the expression has seen to it
	case comment == "Ctrl-C ends it":
		c.interrupt = true
	default:
		t.Fatalf("line %d: comment %q says nothing that the test knows", number, comment)
	}
	return c
}

// says tells whether some line of the output has the wanted one in it: its words in
// their order with anything for "…", however far they are apart.
func says(output, want string) bool {
	var parts []string
	for part := range strings.SplitSeq(squeezed(want), "…") {
		parts = append(parts, regexp.QuoteMeta(part))
	}
	re := regexp.MustCompile(strings.Join(parts, ".*"))
	for line := range strings.Lines(output) {
		if re.MatchString(squeezed(line)) {
			return true
		}
	}
	return false
}

func squeezed(line string) string { return strings.Join(strings.Fields(line), " ") }
