// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package footprint

import (
	"os"
	"runtime"
	"strconv"
	"strings"
	"testing"
)

// residentFiles returns the resident memory of mapped files, in kilobytes.
func residentFiles(t *testing.T) int {
	t.Helper()
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Fatal(err)
	}
	_, after, _ := strings.Cut(string(status), "RssFile:")
	kilobytes, err := strconv.Atoi(strings.Fields(after)[0])
	if err != nil {
		t.Fatal(err)
	}
	return kilobytes
}

// TestForgetProgram checks that pages needed only at the start are released, and that the program
// continues to run. It must not run in parallel, because other tests would load pages in the
// meantime.
func TestForgetProgram(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("only Linux reports mapped memory")
	}
	exe, err := os.ReadFile("/proc/self/exe") // loads the whole file into the page cache
	if err != nil {
		t.Fatal(err)
	}
	before := residentFiles(t)
	if err := forgetProgram(); err != nil {
		t.Fatal(err)
	}
	after := residentFiles(t)
	t.Logf("%d kB of the program's %d kB were mapped, %d kB are", before, len(exe)>>10, after)
	if after >= before {
		t.Errorf("%d kB of files are resident, want less than the %d kB before", after, before)
	}
}
