// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package columns

import (
	"io"
	"regexp"
	"strings"
	"sync"
	"unicode/utf8"

	"golang.org/x/sys/unix"
)

// OfTerminal returns the width of the terminal that out writes to, in characters; 0 if it is none or
// does not know it.
func OfTerminal(out any) int {
	if w, ok := out.(*Writer); ok {
		return w.width()
	}
	f, ok := out.(interface{ Fd() uintptr })
	if !ok {
		return 0
	}
	size, err := unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ)
	if err != nil {
		return 0
	}
	return int(size.Col)
}

// Writer writes text, in lines that fit if it goes to a terminal. It is safe for concurrent use.
type Writer struct {
	// Out receives the text.
	Out io.Writer
	// Width is the greatest length of lines in characters; 0 means the width of the terminal that Out is.
	Width int

	mu   sync.Mutex
	open bool // the last line has no end yet
}

// Raw returns the writer for text that is copied or read by programs, whose lines stay as they are.
func Raw(out io.Writer) io.Writer {
	if w, ok := out.(*Writer); ok {
		return w.Out
	}
	return out
}

// Write implements io.Writer. It does not break a line that several calls write.
func (w *Writer) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	text, first := string(p), ""
	if w.open {
		i := strings.IndexByte(text, '\n') + 1
		if i == 0 {
			i = len(text)
		}
		first, text = text[:i], text[i:]
	}
	if len(p) > 0 {
		w.open = p[len(p)-1] != '\n'
	}
	if width := w.width(); width > 0 {
		text = Wrap(text, width)
	}
	if _, err := io.WriteString(w.Out, first+text); err != nil {
		return 0, err
	}
	return len(p), nil
}

// Fd returns the file descriptor of a terminal, and an invalid one for another output.
func (w *Writer) Fd() uintptr {
	if f, ok := w.Out.(interface{ Fd() uintptr }); ok {
		return f.Fd()
	}
	return ^uintptr(0)
}

func (w *Writer) width() int {
	if w.Width > 0 {
		return w.Width
	}
	return OfTerminal(w.Out)
}

var (
	// color are the control sequences that change colours.
	color = regexp.MustCompile("\x1b\\[[0-9;]*[A-Za-z]")
	// command is the beginning of a line with a command to copy.
	command = regexp.MustCompile(`^ +(sudo |curl |kubectl |kustomize |[A-Z_]+=\S+ )*(outrigger|curl|kubectl|kustomize|echo) `)
)

// visible returns the number of characters of a text that a terminal shows.
func visible(text string) int {
	if strings.Contains(text, "\x1b") {
		text = color.ReplaceAllString(text, "")
	}
	return utf8.RuneCountInString(text)
}

// Wrap breaks the lines of a text that have more than width characters between words. What follows is
// indented like the last column of the line, such as the meaning of a flag, or by two spaces. A command
// remains one: a backslash ends the lines that continue, and its comment goes before it. A word that is
// longer than a line stays whole, so that it can be copied.
func Wrap(text string, width int) string {
	var b strings.Builder
	for line := range strings.Lines(text) {
		content, end := strings.CutSuffix(line, "\n")
		if visible(content) <= width {
			b.WriteString(line)
			continue
		}
		b.WriteString(wrapLine(content, width))
		if end {
			b.WriteByte('\n')
		}
	}
	return b.String()
}

func wrapLine(line string, width int) string {
	text := strings.TrimLeft(line, " ")
	lead := line[:len(line)-len(text)]
	switch column := lastColumn(line); {
	case command.MatchString(line):
		if run, comment, ok := strings.Cut(line, "  # "); ok {
			return Wrap(lead+"# "+comment+"\n"+strings.TrimRight(run, " "), width)
		}
		return fill(text, lead, lead+"  ", ` \`, width)
	case strings.HasPrefix(text, "# "):
		return fill(text, lead, lead+"# ", "", width)
	case column <= len(lead):
	case column <= width/2 && column+longestWord(line[column:]) <= width:
		return fill(text, lead, strings.Repeat(" ", column), "", width)
	case text[0] == '-': // a flag
		return strings.TrimRight(line[:column], " ") + "\n" + fill(line[column:], lead+"    ", lead+"    ", "", width)
	}
	return fill(text, lead, lead+"  ", "", width)
}

// fill returns the words of a text as lines, the first of which begins with indent, and the others with
// hang. All but the last one end with end.
func fill(text, indent, hang, end string, width int) string {
	var b strings.Builder
	for {
		at := breakOf(text, width-len(indent), len(end))
		if at < 0 {
			return b.String() + indent + text
		}
		b.WriteString(indent + strings.TrimRight(text[:at], " ") + end + "\n")
		indent, text = hang, strings.TrimLeft(text[at:], " ")
	}
}

// lastColumn returns where the text after the last gap between columns begins, in bytes; 0 for a line
// that has no gap behind its indentation.
func lastColumn(line string) int {
	text := strings.TrimRight(line, " ")
	i := strings.LastIndex(text, "  ")
	if i < 0 || strings.TrimSpace(text[:i]) == "" || utf8.RuneCountInString(text[:i]) != i {
		return 0
	}
	return i + len("  ")
}

// longestWord returns the number of characters of the longest word of a text.
func longestWord(text string) (most int) {
	for word := range strings.FieldsSeq(text) {
		most = max(most, visible(word))
	}
	return most
}

// breakOf returns the position of the space to break a line at, if it has more than width characters: the
// last one with place for end characters before it in that width, else the first one. It returns -1 if
// nothing is to break.
func breakOf(line string, width, end int) int {
	at := -1
	for i := 1; i < len(line); i++ {
		if line[i] != ' ' || line[i-1] == ' ' {
			continue
		}
		n := visible(line[:i])
		if at < 0 || n <= width-end {
			at = i
		}
		if n > width {
			return at
		}
	}
	if visible(line) > width {
		return at
	}
	return -1
}

// Fill returns a text whose paragraphs have lines of at most width characters. Lines that begin with a
// space stay as they are.
func Fill(text string, width int) string {
	var lines []string
	sentence := "" // the lines of a paragraph
	for line := range strings.SplitSeq(text+"\n", "\n") {
		if line != "" && line[0] != ' ' {
			sentence = strings.TrimLeft(sentence+" "+line, " ")
			continue
		}
		if sentence != "" {
			lines = append(lines, fill(sentence, "", "", "", width))
		}
		lines, sentence = append(lines, line), ""
	}
	return strings.TrimSuffix(strings.Join(lines, "\n"), "\n")
}
