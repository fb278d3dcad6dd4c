// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package server

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/outrigger-mesh/outrigger/controlplane/config"
	"github.com/outrigger-mesh/outrigger/controlplane/report"
)

// replica returns what the server says about itself and its proxies.
func (s *Server) replica(t *testing.T) (r report.Replica) {
	t.Helper()
	if code, text := s.debugAnswer(t, "proxies", nil, &r); code != http.StatusOK {
		t.Fatalf("proxies = %d %s", code, text)
	}
	return r
}

// TestFaults checks which faults are known, and until when.
func TestFaults(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var f faults
		check := func(want ...string) {
			t.Helper()
			if got := f.list(); !slices.Equal(got, want) {
				t.Errorf("got the faults %q, want %q", got, want)
			}
		}
		check()
		f.set("b", "no")
		f.set("a", "bad")
		check("a: bad", "b: no")
		f.set("b", "")
		f.source(errors.New("etcd: refused"))
		check("a: bad", "objects are not read again; those that are known stay in force: etcd: refused")
		time.Sleep(sourceFault)
		check("a: bad")
		f.source(fmt.Errorf("%w: fs", config.ErrEnded))
		time.Sleep(time.Hour)
		check("a source of objects has ended; its objects stay in force until the control plane restarts: "+config.ErrEnded.Error()+": fs", "a: bad")
	})
}
