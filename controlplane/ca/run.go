// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package ca

import (
	"context"
	"time"

	"github.com/outrigger-mesh/outrigger/internal/filewatch"
)

const (
	// quiet is how long plugged-in files must not change before they are read, so that several
	// files can be replaced together.
	quiet = 100 * time.Millisecond
	// secondLook is the delay after which inconsistent files are read again before an error is
	// reported.
	secondLook = time.Second
	// lookTimeout limits the time for accessing the store.
	lookTimeout = 5 * time.Second
)

// Run follows the store, the plugged-in files and the clock until ctx is done.
func (a *Authority) Run(ctx context.Context) error {
	w := a.watch()
	defer w.Close()
	look := time.NewTimer(a.look(ctx))
	defer look.Stop()
	soon := time.NewTimer(time.Hour)
	soon.Stop()
	defer soon.Stop()
	for pending := false; ; {
		// Cases: ctx is done; a plugged-in file changed, or events were lost; the files stopped
		// changing; Reload was called; it is time to poll.
		select {
		case <-ctx.Done():
			return nil
		case event := <-w.Events():
			if !w.Concerns(event) {
				continue
			}
			if !pending {
				pending = true
				soon.Reset(quiet)
			}
			continue
		case err := <-w.Errors():
			a.cfg.Logger.Debug("error while watching the plugged-in certificate authority; rereading it", "err", err)
			if !pending {
				pending = true
				soon.Reset(quiet)
			}
			continue
		case <-soon.C:
			pending = false
		case <-a.poke:
		case <-look.C:
		}
		w.Aim() // first, so that no change is missed
		look.Reset(a.look(ctx))
	}
}

// look reads everything and returns the delay until the next time.
func (a *Authority) look(ctx context.Context) time.Duration {
	ctx, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	a.mu.Lock()
	defer a.mu.Unlock()
	wait := a.cfg.Poll
	if a.plugin != nil && a.readPlugin() {
		wait = min(wait, secondLook)
	}
	err := a.refresh(ctx)
	if ctx.Err() == nil || err == nil { // log nothing while the process ends
		a.say(&a.said.material, "the certificate authority cannot be checked and stays unchanged; retrying", err)
	}
	now := time.Now()
	for _, at := range []time.Time{a.settled.due, a.nextCheck} {
		if left := at.Sub(now); left > 0 {
			wait = min(wait, left)
		}
	}
	return wait
}

// readPlugin reads the plugged-in files. It returns true if they are invalid for the first time,
// because they may be in the middle of a replacement.
func (a *Authority) readPlugin() (again bool) {
	before, rejected := a.plugin.rejected, "the plugged-in certificate authority in "+a.cfg.PluginDir+" is rejected; the last valid one stays in force"
	changed, err := a.plugin.read()
	switch {
	case err != nil && a.plugin.rejected != before:
		return true
	case err != nil:
		if a.said.plugin != err.Error() {
			a.metrics.reloads.WithLabelValues("rejected").Inc()
		}
		a.metrics.rejected.Set(1)
		a.say(&a.said.plugin, rejected, err)
		return false
	}
	if a.said.plugin != "" {
		a.cfg.Logger.Info("the plugged-in certificate authority is valid again", "path", a.cfg.PluginDir)
	}
	a.say(&a.said.plugin, rejected, nil)
	a.metrics.rejected.Set(0)
	if changed {
		a.metrics.reloads.WithLabelValues("applied").Inc()
	}
	return false
}

// watch watches the files of a plugged-in authority. If that is not possible, polling still detects
// changes.
func (a *Authority) watch() *filewatch.Watch {
	if a.plugin == nil || a.unwatched {
		return &filewatch.Watch{}
	}
	w, err := filewatch.New(a.plugin.paths()...)
	if err != nil {
		a.cfg.Logger.Warn("the directory of the plugged-in certificate authority cannot be watched; it is polled instead",
			"path", a.cfg.PluginDir, "duration", a.cfg.Poll, "err", err)
	}
	w.Aim()
	return w
}
