// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package envoy

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/outrigger-mesh/outrigger/internal/clip"
)

// The oldest supported version of Envoy, which understands the configuration of the agent and the
// control plane.
const (
	minMajor = 1
	minMinor = 36
)

// maxMinor is the minor version of the newest Envoy 1.x that the project is tested with.
const maxMinor = 40

// versionTimeout limits the run time of `envoy --version`.
const versionTimeout = 10 * time.Second

// versionPattern matches the output of `envoy --version`: "<path>  version:
// <revision>/<version>/<Clean|Modified>/<RELEASE|DEBUG>/<TLS library>".
var versionPattern = regexp.MustCompile(`/(\d{1,5})\.(\d{1,5})\.(\d{1,5})(-[0-9A-Za-z.-]+)?/(?:([0-9A-Za-z]+)/([0-9A-Za-z]+))?`)

// Version is the version of an Envoy binary.
type Version struct {
	Major, Minor, Patch int
	// Full is the version as printed by the binary, for example "1.37.0-dev".
	Full string
	// Build describes the build, for example "Clean/RELEASE". It is empty if unknown.
	Build string
}

// Untested returns the reason why the project's tests do not cover this Envoy, or "" if they do.
// Possible reasons are another version, a pre-release and a build from modified source.
func (v Version) Untested() string {
	switch {
	case v.Major != minMajor || v.Minor < minMinor || v.Minor > maxMinor:
		return fmt.Sprintf("versions %d.%d to %d.%d are tested", minMajor, minMinor, minMajor, maxMinor)
	case strings.Contains(v.Full, "-"):
		return "it is a pre-release"
	case v.Build != "Clean/RELEASE":
		return fmt.Sprintf("its build is %q, that of a release is \"Clean/RELEASE\"", v.Build)
	}
	return ""
}

// bypasses are the known faults of Envoy that let requests round authorization policies. It is never
// written to.
var bypasses = []struct {
	name string
	// fixed is the first fixed patch of each minor version that has the fault.
	fixed map[int]int
}{
	{"CVE-2026-26308", map[int]int{36: 5, 37: 1}},
	{"CVE-2026-73511", map[int]int{36: 10, 37: 6, 38: 4, 39: 1}},
	{"CVE-2026-73551", map[int]int{36: 10, 37: 6, 38: 4, 39: 1}},
	{"CVE-2026-73552", map[int]int{36: 10, 37: 6, 38: 4, 39: 1}},
	{"CVE-2026-73553", map[int]int{36: 10, 37: 6, 38: 4, 39: 1}},
}

// Unsafe returns an error that names the known faults by which requests get round authorization
// policies, and the version without them, or nil if there are none.
func (v Version) Unsafe() error {
	var names []string
	safe := 0
	for _, b := range bypasses {
		if fixed, ok := b.fixed[v.Minor]; ok && v.Major == minMajor && v.Patch < fixed {
			names, safe = append(names, b.name), max(safe, fixed)
		}
	}
	if len(names) == 0 {
		return nil
	}
	return fmt.Errorf("version %s lets requests bypass authorization policies (%s): use %d.%d.%d or newer of this series, or allow it with --allow-unsafe-envoy",
		v, strings.Join(names, ", "), v.Major, v.Minor, safe)
}

// String returns the version as printed by the binary.
func (v Version) String() string { return v.Full }

// CheckVersion runs the binary to determine its version. It returns an error if the version is too old,
// or unless allowUnsafe is true, if it has known bypasses of authorization.
func CheckVersion(ctx context.Context, binary string, allowUnsafe bool) (Version, error) {
	ctx, cancel := context.WithTimeout(ctx, versionTimeout)
	defer cancel()
	if _, err := exec.LookPath(binary); err != nil {
		return Version{}, fmt.Errorf("there is no envoy at %s: install one there, or set binaryPath of the proxy configuration to one: %w", binary, err)
	}
	cmd := exec.CommandContext(ctx, binary, "--version")
	out, err := answer(cmd)
	if err != nil {
		switch {
		case errors.Is(ctx.Err(), context.DeadlineExceeded):
			err = fmt.Errorf("no answer within %s: %w", versionTimeout, ctx.Err())
		case ctx.Err() != nil:
			err = ctx.Err()
		}
		return Version{}, fmt.Errorf("run %s --version: %w%s; binaryPath of the proxy configuration must name an envoy for this machine", binary, err, said(out))
	}
	v, err := parseVersion(string(out))
	if err != nil {
		return Version{}, fmt.Errorf("read the version of %s: %w", binary, err)
	}
	if v.Major < minMajor || v.Major == minMajor && v.Minor < minMinor {
		return v, fmt.Errorf("envoy at %s is version %s, but %d.%d or newer is needed: install a newer envoy there, or set binaryPath of the proxy configuration to one",
			binary, v, minMajor, minMinor)
	}
	if fault := v.Unsafe(); fault != nil && !allowUnsafe {
		return v, fmt.Errorf("envoy at %s: %w", binary, fault)
	}
	return v, nil
}

// answer runs a program that prints something and exits, and returns its output. It does not wait
// for background processes that a script leaves with the pipe open.
func answer(cmd *exec.Cmd) ([]byte, error) {
	cmd.WaitDelay = answerGrace
	out, err := cmd.CombinedOutput()
	if errors.Is(err, exec.ErrWaitDelay) {
		err = nil // the program itself has succeeded
	}
	return out, err
}

// said formats a program's output, shortened, for appending to an error.
func said(out []byte) string {
	text := strings.TrimSpace(string(out))
	if text == "" {
		return ""
	}
	return fmt.Sprintf(" (it printed %q)", clip.Cut(text, maxOutput))
}

func parseVersion(out string) (Version, error) {
	m := versionPattern.FindStringSubmatch(out)
	if m == nil {
		return Version{}, fmt.Errorf("%q names no version as <revision>/<major>.<minor>.<patch>/...: is it an envoy?", clip.Cut(strings.TrimSpace(out), maxOutput))
	}
	v := Version{Full: m[1] + "." + m[2] + "." + m[3] + m[4]}
	if m[5] != "" {
		v.Build = m[5] + "/" + m[6]
	}
	for i, part := range []*int{&v.Major, &v.Minor, &v.Patch} {
		n, err := strconv.Atoi(m[i+1])
		if err != nil {
			return Version{}, err
		}
		*part = n
	}
	return v, nil
}

// maxOutput is the maximum number of bytes of Envoy's output that an error quotes.
const maxOutput = 200
