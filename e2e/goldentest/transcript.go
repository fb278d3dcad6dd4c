// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package goldentest

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"
)

// Columns is the width of the terminal of transcripts.
const Columns = 80

// A Step is one command of a transcript and what it printed.
type Step struct {
	// Comment are the lines before the command.
	Comment string
	// Command is a line for a shell. Comments behind it say what happens while it runs, as in
	// outrigger tap web # after "tapping": request, after "GET": interrupt
	Command string
	// Output is what it printed, with a line for an exit code that is not 0.
	Output string
}

// Failed reports whether the command had another exit code than 0.
func (s Step) Failed() bool {
	return strings.Contains(s.Output, "\n[exit code ") || strings.HasPrefix(s.Output, "[exit code ")
}

// Read returns the steps of a transcript: commands begin with two spaces and a dollar sign, output with
// two spaces, comments with neither.
func Read(t *testing.T, file string) (steps []Step) {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	comment, blank := "", ""
	for line := range strings.Lines(string(text)) {
		body, indented := strings.CutPrefix(line, "  ")
		command, begins := strings.CutPrefix(body, "$ ")
		switch {
		case line == "\n":
			blank += line
			continue
		case begins && indented:
			steps = append(steps, Step{Comment: comment + blank, Command: strings.TrimSpace(command)})
			comment = ""
		case indented && len(steps) > 0:
			steps[len(steps)-1].Output += blank + body
		default:
			comment += blank + line
		}
		blank = ""
	}
	return steps
}

// A Shell runs the commands of transcripts.
type Shell struct {
	// Dir is the directory in which they run, Env their environment.
	Dir string
	Env []string
	// Request makes a request for the action of this name. Optional.
	Request func()
	// Replace are the texts that differ from run to run and what is written for them.
	Replace []Replacement
}

// Play runs the commands of a transcript and compares what they print.
func (s *Shell) Play(t *testing.T, file string) {
	t.Helper()
	var b strings.Builder
	for _, step := range Read(t, file) {
		fmt.Fprintf(&b, "%s  $ %s\n", step.Comment, step.Command)
		for line := range strings.Lines(s.run(t, step.Command)) {
			b.WriteString(strings.TrimRight("  "+line, " \n") + "\n")
		}
	}
	Check(t, file, b.String())
}

// action is what happens when a command has printed a text.
var action = regexp.MustCompile(`after "([^"]+)": (interrupt|request)`)

func (s *Shell) run(t *testing.T, command string) string {
	t.Helper()
	master, terminal := Terminal(t, Columns)
	defer func() { _ = master.Close() }() // nothing is left to read
	if action.MatchString(command) {
		command = "exec " + command // it receives the signal, not the shell
	}
	cmd := exec.Command("/bin/sh", "-c", command)
	cmd.Dir, cmd.Env = s.Dir, s.Env
	cmd.Stdout, cmd.Stderr = terminal, terminal
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	_ = terminal.Close() // the command has it
	var out bytes.Buffer
	actions, seen := action.FindAllStringSubmatch(command, -1), 0
	timeout := time.AfterFunc(time.Minute, func() { _ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) })
	for buffer := make([]byte, 1<<16); ; {
		n, err := master.Read(buffer)
		out.Write(buffer[:n])
		for len(actions) > 0 {
			at := bytes.Index(out.Bytes()[seen:], []byte(actions[0][1]))
			if at < 0 {
				break
			}
			seen += at
			if actions[0][2] == "request" {
				s.Request()
			} else {
				_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGINT) // it may have ended
			}
			actions = actions[1:]
		}
		if err != nil { // the terminal is closed
			break
		}
	}
	if err := cmd.Wait(); err != nil && cmd.ProcessState == nil {
		t.Fatal(err)
	}
	if !timeout.Stop() {
		t.Errorf("%s: it did not end:\n%s", command, &out)
	}
	text := strings.TrimRight(Normal(strings.ReplaceAll(out.String(), "\r\n", "\n"), s.Replace), "\n")
	if text != "" {
		text += "\n"
	}
	if code := cmd.ProcessState.ExitCode(); code != 0 {
		text += fmt.Sprintf("[exit code %d]\n", code)
	}
	return text
}
