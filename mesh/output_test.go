// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package mesh

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestClassify(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		line  string
		level level
		text  string
	}{
		{`time=2026-01-02T03:04:05Z level=INFO msg=ready`, levelInfo, "msg=ready"},
		{`time=2026-01-02T03:04:05Z level=DEBUG msg=ready`, levelInfo, "msg=ready"},
		{`time=2026-01-02T03:04:05Z level=WARN msg="a b" path=/x`, levelWarning, `msg="a b" path=/x`},
		{`time=2026-01-02T03:04:05Z level=ERROR+2 msg=x`, levelError, "msg=x"},
		{`{"time":"2026","level":"ERROR","msg":"x"}`, levelError, `{"msg":"x"}`},
		{"2026-01-02T03:04:05.678901Z\tinfo\tsds\tready\tpath=/x", levelInfo, "sds ready path=/x"},
		{"2026-01-02T03:04:05.678901Z\twarning\tenvoy config src.cc:1\tgone\tthread=1", levelWarning, "envoy config src.cc:1 gone thread=1"},
		{`[2026-01-02 03:04:05.678][12][warning][config] [source/a.cc:1] gone`, levelWarning, "Envoy: [source/a.cc:1] gone"},
		{`[2026-01-02 03:04:05.678][12][info][main] starting`, levelInfo, "Envoy: starting"},
		{`[2026-01-02 03:04:05.678][12][critical] crash`, levelError, "Envoy: crash"},
		{`panic: x`, levelNone, "panic: x"},
		{``, levelNone, ""},
	} {
		l, text := classify(c.line)
		if l != c.level || text != c.text {
			t.Errorf("classify(%q) = %d %q, want %d %q", c.line, l, text, c.level, c.text)
		}
	}
}

func TestOutput(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "log", "x.log")
	o, err := newOutput(path)
	if err != nil {
		t.Fatal(err)
	}
	var shown []string
	o.quiet = true
	o.show = func(l level, text string) { shown = append(shown, fmt.Sprint(l, " ", text)) }
	long := strings.Repeat("x", maxLine+1)
	for _, piece := range []string{"time=1 level=WA", "RN msg=a\r\ntime=1 level=INFO msg=b\n", "\ntime=1 level=ERROR msg=c\n", long, "\nlast"} {
		if n, err := o.Write([]byte(piece)); n != len(piece) || err != nil {
			t.Fatal(n, err)
		}
	}
	o.flush()
	want := []string{"2 msg=a", "0 ", "3 msg=c", "0 " + long[:maxLine], "0 x", "0 last"}
	if diff := cmp.Diff(want, shown); diff != "" {
		t.Error(diff)
	}
	if got := o.reason(exit{code: 1}); got != "msg=c" {
		t.Errorf("reason %q", got)
	}
	if !strings.HasSuffix(o.lastLines(), "\n    | last") {
		t.Errorf("last lines %q", o.lastLines())
	}
	o.begin()
	if o.reason(exit{}) != "" || o.lastLines() != "" {
		t.Error("a new life remembers the old one")
	}
	o.close()
	text, err := os.ReadFile(path)
	if err != nil || !strings.Contains(string(text), "level=INFO msg=b\n") {
		t.Errorf("the log file lacks a line: %v", err)
	}
}

func TestReason(t *testing.T) {
	t.Parallel()
	const info, fault, word = "time=1 level=INFO msg=i\n", "time=1 level=ERROR msg=e\n", "outrigger-agent: it broke\n"
	killed := exit{signal: 9}
	for _, c := range []struct {
		text string
		exit exit
		want string
	}{
		{info + word, exit{code: 1}, "it broke"},
		{info + word, killed, ""},
		{word + info, exit{code: 1}, ""},
		{fault + info, exit{code: 1}, "msg=e"},
		{fault + info, killed, "msg=e"},
		{fault + word, exit{code: 1}, "msg=e"},
		{"", exit{code: 1}, ""},
	} {
		o := &output{show: func(level, string) {}}
		if _, err := o.Write([]byte(c.text)); err != nil {
			t.Fatal(err)
		}
		if got := o.reason(c.exit); got != c.want {
			t.Errorf("reason of %q after %+v is %q, want %q", c.text, c.exit, got, c.want)
		}
	}
}

func TestLogFileIsBounded(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "x.log")
	o, err := newOutput(path)
	if err != nil {
		t.Fatal(err)
	}
	o.show = func(level, string) {}
	line := []byte(strings.Repeat("x", maxLine-2) + "\n")
	for range 5 * maxLogFile / maxLine / 2 {
		if _, err := o.Write(line); err != nil {
			t.Fatal(err)
		}
	}
	o.close()
	for _, p := range []string{path, path + ".1"} {
		if info, err := os.Stat(p); err != nil || info.Size() > maxLogFile+maxLine {
			t.Errorf("%s: %v %v", p, info, err)
		}
	}
}
