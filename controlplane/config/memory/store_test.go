// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package memory_test

import (
	"testing"

	"github.com/outrigger-mesh/outrigger/controlplane/config"
	"github.com/outrigger-mesh/outrigger/controlplane/config/memory"
	"github.com/outrigger-mesh/outrigger/controlplane/config/storetest"
)

func TestMemory(t *testing.T) {
	t.Parallel()
	storetest.Run(t, func(*testing.T) config.Store { return memory.New("memory://") }, storetest.Options{})
}
