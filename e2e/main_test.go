// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package e2e

import (
	"fmt"
	"os"
	"testing"

	"github.com/outrigger-mesh/outrigger/e2e/ownnet"
)

// TestMain also runs the test binary as an application of a mesh.
func TestMain(m *testing.M) {
	if app := os.Getenv(appVariable); app != "" {
		fmt.Println(runApp(app))
		os.Exit(1)
	}
	os.Exit(ownnet.Tests(m).Run())
}
