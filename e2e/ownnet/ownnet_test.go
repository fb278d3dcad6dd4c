// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package ownnet

import (
	"net"
	"os"
	"os/exec"
	"strings"
	"testing"
)

const asPackage = "OUTRIGGER_TEST_AS_PACKAGE"

// TestMain is also the test binary of a package that fails with code 7.
func TestMain(m *testing.M) {
	if os.Getenv(asPackage) != "" {
		os.Exit(Tests(inside{}).Run())
	}
	os.Exit(m.Run())
}

// inside listens on an address that is taken outside.
type inside struct{}

func (inside) Run() int {
	l, err := net.Listen("tcp", os.Getenv(asPackage))
	if err != nil {
		_, _ = os.Stdout.WriteString(err.Error())
		return 1
	}
	_, _ = os.Stdout.WriteString("listens at " + l.Addr().String())
	return 7
}

func TestTests(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), asPackage+"="+l.Addr().String())
	var errs strings.Builder
	cmd.Stderr = &errs
	out, err := cmd.Output()
	if strings.Contains(errs.String(), "no network namespace") {
		t.Skipf("this system has no network namespaces: %s", errs.String())
	}
	if want := "listens at " + l.Addr().String(); string(out) != want || cmd.ProcessState.ExitCode() != 7 {
		t.Errorf("it says %q and ends with %v, want %q and exit status 7\n%s", out, err, want, errs.String())
	}
}

// TestAlone checks that tests without a namespace wait for each other.
func TestAlone(t *testing.T) {
	t.Parallel()
	first := alone()
	second := make(chan net.Listener)
	go func() { second <- alone() }()
	select {
	case <-second:
		t.Fatal("two have the network at once")
	default:
	}
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	if err := (<-second).Close(); err != nil {
		t.Fatal(err)
	}
}
