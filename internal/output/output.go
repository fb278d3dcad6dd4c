// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package output

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/spf13/cobra"
	"sigs.k8s.io/yaml"

	"github.com/outrigger-mesh/outrigger/internal/columns"
)

// Formats of the output. A command whose output is for readers has all of them.
const (
	Table = "table"
	Wide  = "wide" // the table, in which nothing is shortened or left out
	YAML  = "yaml"
	JSON  = "json"
)

// flag is the value of the flag -o.
type flag struct {
	to      *string
	formats []string
}

func (f flag) String() string { return *f.to }

// Type returns the name of the type in the help.
func (f flag) Type() string { return "string" }

// Set implements pflag.Value.
func (f flag) Set(format string) error {
	if !slices.Contains(f.formats, format) {
		return errors.New("write " + OneOf(f.formats))
	}
	*f.to = format
	return nil
}

// Add adds the flag -o to a command, with the formats of a table and more.
func Add(cmd *cobra.Command, to *string, more ...string) {
	AddOnly(cmd, to, append([]string{Table, Wide, YAML, JSON}, more...)...)
}

// AddOnly adds the flag -o to a command, with some formats, the default first.
func AddOnly(cmd *cobra.Command, to *string, formats ...string) {
	*to = formats[0]
	cmd.Flags().VarP(flag{to, formats}, "output", "o", OneOf(formats))
	err := cmd.RegisterFlagCompletionFunc("output", func(_ *cobra.Command, _ []string, beginning string) ([]string, cobra.ShellCompDirective) {
		list := slices.DeleteFunc(slices.Sorted(slices.Values(formats)), func(s string) bool { return !strings.HasPrefix(s, beginning) })
		return list, cobra.ShellCompDirectiveNoFileComp
	})
	if err != nil {
		panic(err) // the flag exists, and has no other completion
	}
}

// OneOf lists alternatives: "a, b or c".
func OneOf(list []string) string {
	last := len(list) - 1
	return strings.Join(list[:last], ", ") + " or " + list[last]
}

// Clock formats a time of the past in the zone of now: today's without the date, that of another year
// with the year.
func Clock(at, now time.Time) string {
	at = at.In(now.Location())
	switch {
	case at.Year() != now.Year():
		return at.Format(time.DateTime)
	case at.YearDay() == now.YearDay():
		return at.Format(time.TimeOnly)
	}
	return at.Format("Jan 02 15:04:05")
}

// ForReaders reports whether a format is text for readers.
func ForReaders(format string) bool { return format != YAML && format != JSON }

// Write writes an answer as JSON or YAML, without characters that control terminals.
func Write(out io.Writer, format string, answer any) error {
	var b bytes.Buffer
	encoder := json.NewEncoder(&b)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", "  ")
	if err := encoder.Encode(answer); err != nil {
		return fmt.Errorf("write the output: %w", err)
	}
	text := Visible(b.String())
	if format == YAML {
		raw, err := yaml.JSONToYAML([]byte(text))
		if err != nil {
			return fmt.Errorf("write the output as YAML: %w", err)
		}
		if plain := string(raw); Visible(plain) == plain { // else the JSON, which is YAML, too
			text = plain
		}
	}
	_, err := io.WriteString(columns.Raw(out), text)
	return err
}

// Visible escapes the characters in JSON that control terminals, which may be in texts of clients. What
// is not UTF-8 is replaced.
func Visible(text string) string {
	var b strings.Builder
	for _, r := range text {
		if unicode.IsControl(r) && r != '\t' && r != '\n' || unicode.Is(unicode.Bidi_Control, r) {
			fmt.Fprintf(&b, `\u%04x`, r)
		} else {
			b.WriteRune(r)
		}
	}
	return b.String()
}
