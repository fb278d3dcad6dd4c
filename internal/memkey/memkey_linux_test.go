// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package memkey

import (
	"bytes"
	"os"
	"os/exec"
	"strings"
	"testing"
)

// TestMain also runs the program that TestInherited starts, which prints the key.
func TestMain(m *testing.M) {
	if len(os.Args) == 2 && os.Args[1] == "print the key" {
		key, err := Read(3)
		_, again := os.Readlink("/proc/self/fd/3")
		if err != nil || again == nil {
			os.Exit(1)
		}
		_, _ = os.Stdout.Write(key) // the test compares the output
		return
	}
	os.Exit(m.Run())
}

// TestInherited checks that each process that inherits the descriptor reads the same key, and
// closes the descriptor so that its own child processes do not inherit it.
func TestInherited(t *testing.T) {
	t.Parallel()
	f, err := New()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	var keys [2][]byte
	for i := range keys {
		cmd := exec.Command(os.Args[0], "print the key")
		cmd.ExtraFiles = []*os.File{f}
		if keys[i], err = cmd.Output(); err != nil {
			t.Fatal(err)
		}
	}
	if len(keys[0]) != Size || !bytes.Equal(keys[0], keys[1]) || bytes.Equal(keys[0], make([]byte, Size)) {
		t.Errorf("got keys of %d and %d bytes, equal: %t", len(keys[0]), len(keys[1]), bytes.Equal(keys[0], keys[1]))
	}
	if _, err := f.WriteAt([]byte("x"), 0); err == nil {
		t.Error("writing to the key returned no error")
	}
	if err := f.Truncate(0); err == nil {
		t.Error("truncating the key returned no error")
	}
}

// TestOtherDescriptor checks that a descriptor of another file is rejected and stays open.
func TestOtherDescriptor(t *testing.T) {
	t.Parallel()
	f, err := os.CreateTemp(t.TempDir(), "key")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	if _, err := Read(int(f.Fd())); err == nil || !strings.Contains(err.Error(), "is not a key in memory") {
		t.Errorf("Read of another file = %v, want an error", err)
	}
	if _, err := f.WriteString("still open"); err != nil {
		t.Error(err)
	}
	if _, err := Read(1 << 20); err == nil {
		t.Error("Read of a closed descriptor returned no error")
	}
}
