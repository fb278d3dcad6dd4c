// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package server

import (
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/outrigger-mesh/outrigger/controlplane/config"
)

// sourceFault is how long an error of a source of objects counts: it is retried more often.
const sourceFault = time.Minute

// injectorFault is what is wrong while the configuration of the injector is.
const injectorFault = "the configuration of the injector is invalid"

// faults are what is wrong with parts of the control plane that go on with what they had.
type faults struct {
	mu     sync.Mutex // guards the fields below
	texts  map[string]string
	failed time.Time // when the source failed last
	reason string
}

// set records an error of a part. An empty one means that the part is well.
func (f *faults) set(what, err string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err == "" {
		delete(f.texts, what)
		return
	}
	if f.texts == nil {
		f.texts = map[string]string{}
	}
	f.texts[what] = what + ": " + err
}

// source records an error of a source of objects.
func (f *faults) source(err error) {
	if errors.Is(err, config.ErrEnded) {
		f.set("a source of objects has ended; its objects stay in force until the control plane restarts", err.Error())
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.failed, f.reason = time.Now(), err.Error()
}

// list returns the faults.
func (f *faults) list() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	list := slices.Sorted(maps.Values(f.texts))
	if time.Since(f.failed) < sourceFault {
		list = append(list, "objects are not read again; those that are known stay in force: "+f.reason)
	}
	return list
}

// faultsNow returns what is wrong with the control plane, as sentences without a period.
func (s *Server) faultsNow() []string {
	list := s.faults.list()
	add := func(what, text string) {
		if text != "" {
			list = append(list, what+": "+text)
		}
	}
	add("the history of objects", s.revisions.Problem())
	if s.services != nil {
		add("the history of services", s.services.Problem())
		for _, c := range s.clusters() {
			if c.Status != "synced" && c.Status != "syncing" {
				add("the cluster "+c.ID+" cannot be read completely", c.Status)
			}
		}
	}
	return list
}
