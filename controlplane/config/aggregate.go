// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package config

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/outrigger-mesh/outrigger/controlplane/config/schema"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

// Replaceable is an annotation of objects that were made for a user: the same object in another store is
// effective instead.
const Replaceable = "outrigger.mesh/replaceable"

// ReplacesIt ends the warning about a replaceable object that another one replaces.
const ReplacesIt = " replaces it"

// Aggregate combines several stores into one. If two of them have the same object,
// that of the first store is effective, unless it is [Replaceable]. Writes go to one of
// them. If a store fails, the others are unaffected and its objects stay in force.
type Aggregate struct {
	stores []Store
	writer Store
	// handlers, watchError and hidden are written before Run only.
	handlers   handlers
	watchError func(error)
	hidden     func(model.Problem)
	// synced is closed by Run.
	synced chan struct{}

	// announcing serializes the calls of handlers. It guards announced: the last state of
	// each object that a store reported.
	announcing sync.Mutex
	announced  []map[model.Key]*model.Config

	mu sync.Mutex // guards the fields below
	// ended has the reason why a store stopped following its source, by the index
	// of the store.
	ended map[int]error
}

var _ Store = (*Aggregate)(nil)

// ErrEnded means that a store of an [Aggregate] has stopped following its source, while
// the others continue.
var ErrEnded = errors.New("it stopped following its source")

// endedError is the reason why a store ended.
type endedError struct{ error }

func (e endedError) Unwrap() error        { return e.error }
func (e endedError) Is(target error) bool { return target == ErrEnded }

// NewAggregate combines stores that do not run yet, in the order of their precedence.
// Writes go to writer, which is one of the stores; nil makes the aggregate read only.
func NewAggregate(writer Store, stores ...Store) *Aggregate {
	a := &Aggregate{
		stores: stores, writer: writer, synced: make(chan struct{}),
		announced: make([]map[model.Key]*model.Config, len(stores)), ended: map[int]error{},
	}
	for i, s := range stores {
		a.announced[i] = map[model.Key]*model.Config{}
		s.RegisterEventHandler(func(events []Event) { a.hear(i, events) })
	}
	return a
}

// Name returns the names of the stores.
func (a *Aggregate) Name() string { return strings.Join(a.Names(), ",") }

// Names returns the name of each store, in the order of their precedence.
func (a *Aggregate) Names() []string {
	names := make([]string, len(a.stores))
	for i, s := range a.stores {
		names[i] = s.Name()
	}
	return names
}

// Schemas returns the kinds that any of the stores serves.
func (a *Aggregate) Schemas() []schema.Schema {
	served := map[model.Kind]bool{}
	for _, s := range a.stores {
		for _, sch := range s.Schemas() {
			served[sch.Kind] = true
		}
	}
	return slices.DeleteFunc(slices.Clone(schema.All()), func(s schema.Schema) bool { return !served[s.Kind] })
}

// List returns the objects of all stores.
func (a *Aggregate) List(kind model.Kind, namespace string) []*model.Config {
	var lists [][]*model.Config
	for _, s := range a.stores {
		if list := s.List(kind, namespace); len(list) > 0 {
			lists = append(lists, list)
		}
	}
	if len(lists) == 0 {
		return nil
	}
	if len(lists) == 1 {
		return lists[0]
	}
	var all []*model.Config
	seen := map[model.Key]int{} // index in all
	for _, list := range lists {
		for _, c := range list {
			switch i, ok := seen[c.Key]; {
			case !ok:
				seen[c.Key] = len(all)
				all = append(all, c)
			case replaceable(all[i]):
				all[i] = c
			}
		}
	}
	slices.SortStableFunc(all, model.Older)
	return all
}

// Get returns the object with the given key, or nil if it does not exist.
func (a *Aggregate) Get(key model.Key) *model.Config {
	c, _ := first(a.stores, key)
	return c
}

// first returns the effective object, and its store.
func first(stores []Store, key model.Key) (found *model.Config, in Store) {
	for _, s := range stores {
		c := s.Get(key)
		switch {
		case c == nil:
		case !replaceable(c):
			return c, s
		case found == nil:
			found, in = c, s
		}
	}
	return found, in
}

func replaceable(c *model.Config) bool { return c.Annotations[Replaceable] == "true" }

// RegisterEventHandler adds a handler; see [Store]. Changes of an object that another
// store hides are not reported.
func (a *Aggregate) RegisterEventHandler(call func([]Event), kinds ...model.Kind) {
	a.handlers = append(a.handlers, handler{call: call, kinds: kinds})
}

// hear processes the events of one store, and reports the changes of effective objects.
// It determines those from the reported states, not from the current content of the
// stores, which may be newer than the events.
func (a *Aggregate) hear(store int, events []Event) {
	a.announcing.Lock()
	defer a.announcing.Unlock()
	if len(a.stores) == 1 {
		a.handlers.call(events)
		return
	}
	out := make([]Event, 0, len(events))
	for _, e := range events {
		key := e.Current().Key
		before := a.counts(key)
		if e.New != nil {
			a.announced[store][key] = e.New
		} else {
			delete(a.announced[store], key)
		}
		if now := a.counts(key); now != before {
			out = append(out, newEvent(before, now))
		}
		if e.Old == nil {
			a.tell(key)
		}
	}
	a.handlers.call(out)
}

// counts returns the effective object, by the states that the stores reported.
func (a *Aggregate) counts(key model.Key) *model.Config {
	var found *model.Config
	for _, announced := range a.announced {
		switch c := announced[key]; {
		case c == nil:
		case !replaceable(c):
			return c
		case found == nil:
			found = c
		}
	}
	return found
}

// SetHiddenHandler sets the function that is called when an object appears that another store has too.
func (a *Aggregate) SetHiddenHandler(call func(model.Problem)) { a.hidden = call }

// tell calls the handler for the stores whose object is not effective.
func (a *Aggregate) tell(key model.Key) {
	in := slices.IndexFunc(a.announced, func(of map[model.Key]*model.Config) bool { return of[key] != nil && of[key] == a.counts(key) })
	for i, of := range a.announced {
		if c := of[key]; c != nil && i != in && in >= 0 && a.hidden != nil {
			a.hidden(a.hiddenBy(c, a.stores[i], a.announced[in][key], a.stores[in]))
		}
	}
}

// hiddenBy returns the problem of an object of a store that is not effective.
func (a *Aggregate) hiddenBy(c *model.Config, of Store, winner *model.Config, in Store) model.Problem {
	p := model.Problem{Object: c.Key, Source: source(c, of), Warning: replaceable(c), Reason: source(winner, in) + ReplacesIt}
	if !p.Warning {
		p.Reason = fmt.Sprintf("the same object is in %s, which comes first: remove one of them", source(winner, in))
	}
	return p
}

// SetWatchErrorHandler sets the handler of every store.
func (a *Aggregate) SetWatchErrorHandler(handler func(error)) {
	a.watchError = handler
	for _, s := range a.stores {
		s.SetWatchErrorHandler(handler)
	}
}

// Run runs all stores until ctx is done. If a store ends before, the watch error handler
// is called, a problem is recorded, and the others continue. Run returns an error when
// all have ended.
func (a *Aggregate) Run(ctx context.Context) error {
	synced, cancel := context.WithCancel(ctx)
	defer cancel()
	g := &errgroup.Group{} // not cancelled by the first error
	for i, s := range a.stores {
		g.Go(func() error { // follows one source
			err := s.Run(ctx)
			if ctx.Err() == nil {
				a.end(i, err)
			}
			return nil
		})
	}
	waited := make(chan struct{})
	go func() { // closes synced when all have synced
		defer close(waited)
		for _, s := range a.stores {
			select {
			case <-s.Synced():
			case <-synced.Done():
				return
			}
		}
		close(a.synced)
	}()
	_ = g.Wait() // its functions do not fail
	if len(a.stores) == 0 {
		<-ctx.Done()
	}
	cancel()
	<-waited
	if ctx.Err() != nil {
		return nil
	}
	return fmt.Errorf("no config source is left: %w", errors.Join(slices.Collect(maps.Values(a.ended))...))
}

// end records that a store has stopped following its source.
func (a *Aggregate) end(store int, err error) {
	if err == nil {
		err = ErrEnded
	}
	err = endedError{fmt.Errorf("config source %s: %w", a.stores[store].Name(), err)}
	a.mu.Lock()
	a.ended[store] = err
	a.mu.Unlock()
	if a.watchError != nil {
		a.watchError(err)
	}
}

// HasStarted reports whether all stores have started.
func (a *Aggregate) HasStarted() bool {
	return !slices.ContainsFunc(a.stores, func(s Store) bool { return !s.HasStarted() })
}

// HasSynced reports whether all stores have synced.
func (a *Aggregate) HasSynced() bool { return isClosed(a.synced) }

// Synced is closed when all stores have synced.
func (a *Aggregate) Synced() <-chan struct{} { return a.synced }

// Waiting returns the names of the stores that have not synced yet.
func (a *Aggregate) Waiting() []string {
	var names []string
	for _, s := range a.stores {
		if !s.HasSynced() {
			names = append(names, s.Name())
		}
	}
	return names
}

// Behind returns the names of the stores that apply no changes because reading their
// source does not finish.
func (a *Aggregate) Behind() []string {
	var names []string
	for _, s := range a.stores {
		if f, ok := s.(interface{ Behind() time.Time }); ok && !f.Behind().IsZero() {
			names = append(names, s.Name())
		}
	}
	return names
}

// Problems returns the problems of all stores, and those about stores that have ended
// and about objects that another store hides.
func (a *Aggregate) Problems() []model.Problem {
	a.mu.Lock()
	ended := maps.Clone(a.ended)
	a.mu.Unlock()
	var all []model.Problem
	for i, s := range a.stores {
		if err := ended[i]; err != nil {
			all = append(all, model.Problem{Source: s.Name(), Reason: err.Error() +
				"; its last objects stay in force, and changes to it take no effect until the control plane restarts"})
		}
		of := s.Problems()
		for _, sch := range s.Schemas() {
			for _, c := range s.List(sch.Kind, "") {
				if winner, in := first(a.stores, c.Key); winner != nil && in != s {
					of = append(slices.Clip(of), a.hiddenBy(c, s, winner, in))
				}
			}
		}
		all = append(all, model.LimitProblems(of)...)
	}
	return all
}

// source returns the location of an object, for messages.
func source(c *model.Config, s Reader) string {
	if c.Source != "" {
		return c.Source
	}
	return s.Name()
}

// Create adds an object to the writable store.
func (a *Aggregate) Create(ctx context.Context, c *model.Config) (string, error) {
	switch {
	case a.writer == nil:
		return "", keyError("create", c.Key, ErrReadOnly)
	case a.Get(c.Key) != nil:
		return "", keyError("create", c.Key, ErrExists)
	}
	return a.writer.Create(ctx, c)
}

// Update replaces an object of the writable store.
func (a *Aggregate) Update(ctx context.Context, c *model.Config) (string, error) {
	if err := a.writable("update", c.Key); err != nil {
		return "", err
	}
	return a.writer.Update(ctx, c)
}

// UpdateStatus replaces the status of an object in the store that contains it.
func (a *Aggregate) UpdateStatus(ctx context.Context, c *model.Config) (string, error) {
	_, s := first(a.stores, c.Key)
	switch {
	case s != nil:
		return s.UpdateStatus(ctx, c)
	case a.writer != nil:
		return a.writer.UpdateStatus(ctx, c)
	}
	return "", keyError("update the status of", c.Key, ErrNotFound)
}

// Patch changes an object of the writable store.
func (a *Aggregate) Patch(ctx context.Context, key model.Key, change func(*model.Config) error) (string, error) {
	if err := a.writable("patch", key); err != nil {
		return "", err
	}
	return a.writer.Patch(ctx, key, change)
}

// Delete removes an object of the writable store.
func (a *Aggregate) Delete(ctx context.Context, key model.Key, resourceVersion string) error {
	if err := a.writable("delete", key); err != nil {
		return err
	}
	return a.writer.Delete(ctx, key, resourceVersion)
}

// writable returns an error for objects of a store that is not the writable one.
func (a *Aggregate) writable(verb string, key model.Key) error {
	if a.writer == nil {
		return keyError(verb, key, ErrReadOnly)
	}
	if c, s := first(a.stores, key); c != nil && s != a.writer {
		return fmt.Errorf("%s %s: it is in %s: %w", verb, key, s.Name(), ErrReadOnly)
	}
	return nil
}
