// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package conformance

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/outrigger-mesh/outrigger/e2e/ownnet"
)

// Variables with what prepare made.
const (
	directory   = "OUTRIGGER_CONFORMANCE_DIR"  // the programs, and the logs of the test
	definitions = "OUTRIGGER_CONFORMANCE_CRDS" // of the Gateway API
)

// TestMain prepares the test, which can need downloads, before the test runs in a network of its own.
func TestMain(m *testing.M) {
	if ownnet.Own() {
		os.Exit(ownnet.Tests(m).Run())
	}
	dir, err := os.MkdirTemp("", "outrigger-conf-") // the path of a Unix socket is short
	code := 1
	if err = errors.Join(err, prepare(dir)); err != nil {
		fmt.Fprintln(os.Stderr, err)
	} else {
		code = ownnet.Tests(m).Run()
	}
	if code == 0 || err != nil { // otherwise the logs are of use
		_ = os.RemoveAll(dir) // it is temporary
	}
	os.Exit(code)
}

// prepare builds the programs of this repository as a user does, and the echo server, into a
// directory, and finds the definitions of the Gateway API.
func prepare(dir string) error {
	for _, args := range [][]string{
		{"make", "-s", "-C", "../../..", "build", "envoy"},
		{"go", "build", "-o", filepath.Join(dir, "echo-basic"), "sigs.k8s.io/gateway-api/conformance/echo-basic"},
	} {
		if out, err := exec.Command(args[0], args[1:]...).CombinedOutput(); err != nil {
			return fmt.Errorf("%s: %w\n%s", strings.Join(args, " "), err, out)
		}
	}
	for _, name := range []string{"outrigger-control", "outrigger-agent"} {
		path, err := filepath.Abs(filepath.Join("../../../bin", name))
		if err != nil {
			return err
		}
		if err := os.Symlink(path, filepath.Join(dir, name)); err != nil {
			return err
		}
	}
	module, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "sigs.k8s.io/gateway-api").Output()
	if err != nil {
		return fmt.Errorf("finding the module of the Gateway API: %w", err)
	}
	return errors.Join(
		os.Setenv(directory, dir),
		os.Setenv(definitions, filepath.Join(strings.TrimSpace(string(module)), "config/crd/experimental")),
	)
}
