// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package inspect

import (
	"os"
	"testing"

	"github.com/outrigger-mesh/outrigger/e2e/ownnet"
)

func TestMain(m *testing.M) { os.Exit(ownnet.Tests(m).Run()) }
