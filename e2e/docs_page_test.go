// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package e2e

import (
	"fmt"
	"regexp"
	"strings"
)

// A page of the documents is a list of steps for the reader, made from its fenced
// blocks:
//
//   - sh: commands; a text block after it is their output
//   - console: lines with "$ " are commands, those below each of them its output
//   - yaml with the first line "# path.yaml": a file that the reader writes
//
// An HTML comment above a block changes how the test treats it: <!-- fails --> means that its
// commands fail, <!-- not run: reason --> that a test cannot run them.

// step is one action of the reader of a page.
type step struct {
	line    int    // of the page, 1 is the first
	file    string // to write; "" runs the script
	script  string // commands, or the content of the file
	output  string // the expected output; "" compares nothing
	fails   bool   // the commands end with an error
	skipped string // why the test does not run it; "" runs it
}

var (
	fence     = regexp.MustCompile("^```([a-z]*)$")
	remark    = regexp.MustCompile(`^<!-- (?:(fails)|not run: (.+)) -->$`)
	namedFile = regexp.MustCompile(`^# ([\w./-]+\.yaml)\n`)
)

// steps reads the steps of a page.
func steps(page string) ([]step, error) {
	var all []step
	var fails bool
	var skipped, language string
	var body []string
	opened := 0 // the line of the fence of the open block
	for i, line := range strings.Split(page, "\n") {
		m := fence.FindStringSubmatch(line)
		switch {
		case opened == 0 && m != nil:
			opened, language, body = i+1, m[1], nil
		case opened == 0 && strings.Contains(line, "```"):
			return nil, fmt.Errorf("line %d: a fence is three backticks and a language at the start of a line", i+1)
		case opened == 0:
			if r := remark.FindStringSubmatch(line); r != nil {
				fails, skipped = r[1] != "", r[2]
			}
		case line == "```":
			next, err := blockSteps(language, strings.Join(body, "\n")+"\n", opened, all)
			if err != nil {
				return nil, err
			}
			for j := range next {
				next[j].fails, next[j].skipped = fails, skipped
			}
			all = append(all, next...)
			opened, fails, skipped = 0, false, ""
		default:
			body = append(body, line)
		}
	}
	if opened != 0 {
		return nil, fmt.Errorf("line %d: the block has no end", opened)
	}
	return all, nil
}

// blockSteps returns the steps of one block. A text block is the output of the last
// step before it.
func blockSteps(language, body string, line int, before []step) ([]step, error) {
	switch language {
	case "sh":
		return []step{{line: line, script: body}}, nil
	case "console":
		return consoleSteps(body, line)
	case "yaml":
		if m := namedFile.FindStringSubmatch(body); m != nil {
			return []step{{line: line, file: m[1], script: body}}, nil
		}
		return nil, nil
	case "text":
		if len(before) == 0 || before[len(before)-1].output != "" || before[len(before)-1].file != "" {
			return nil, fmt.Errorf("line %d: a text block is the output of the sh block above it", line)
		}
		before[len(before)-1].output = body
		return nil, nil
	}
	return nil, fmt.Errorf("line %d: a block is sh, console, text or yaml, not %q", line, language)
}

func consoleSteps(body string, line int) ([]step, error) {
	var all []step
	for i, l := range strings.Split(strings.TrimSuffix(body, "\n"), "\n") {
		if command, ok := strings.CutPrefix(l, "$ "); ok {
			all = append(all, step{line: line + i + 1, script: command + "\n"})
			continue
		}
		if len(all) == 0 {
			return nil, fmt.Errorf("line %d: a console block begins with a command: $ …", line)
		}
		all[len(all)-1].output += l + "\n"
	}
	return all, nil
}

var digits = regexp.MustCompile(`(^|[^A-Za-z0-9])[0-9]+`)

// loose returns an expression that finds the line of a page in an output: blanks and
// numbers may differ, and … stands for anything.
func loose(line string) *regexp.Regexp {
	var words []string
	for _, word := range strings.Fields(line) {
		word = regexp.QuoteMeta(word)
		word = digits.ReplaceAllString(word, `${1}[0-9]+`)
		words = append(words, strings.ReplaceAll(word, "…", ".*"))
	}
	return regexp.MustCompile(strings.Join(words, `\s+`))
}

// missing returns the first line of the page that the output does not have after the
// lines before it, or "" if it has them all, in order.
func missing(page, output string) string {
	rest := strings.Split(output, "\n")
	for line := range strings.SplitSeq(page, "\n") {
		if strings.Trim(line, "… ") == "" {
			continue
		}
		expression := loose(line)
		for len(rest) > 0 && !expression.MatchString(rest[0]) {
			rest = rest[1:]
		}
		if len(rest) == 0 {
			return line
		}
		rest = rest[1:]
	}
	return ""
}
