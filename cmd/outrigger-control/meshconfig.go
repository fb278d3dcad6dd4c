// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"slices"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"
	"google.golang.org/protobuf/proto"
	meshv1alpha1 "istio.io/api/mesh/v1alpha1"

	"github.com/outrigger-mesh/outrigger/bootstrap/meshconfig"
	"github.com/outrigger-mesh/outrigger/controlplane/kube"
)

const (
	// meshRescan is how often the mesh config is looked at, in case an event was
	// lost; meshQuiet how long a file is left alone after one: it may be half
	// written.
	meshRescan = 30 * time.Second
	meshQuiet  = 50 * time.Millisecond
	// meshBusy bounds how long a file that is never quiet is not read.
	meshBusy = 10 * meshQuiet

	// The ConfigMap of the mesh config and its keys are Istio's; those of a
	// revision have it in their name.
	meshMap     = "istio"
	meshKey     = "mesh"
	networksKey = "meshNetworks"
)

// meshVariables are the rows of the table about the mesh config.
func meshVariables() []variable {
	return []variable{
		{"SHARED_MESH_CONFIG", "", "with Kubernetes: name of a ConfigMap in the namespace of the control plane whose key mesh lies beneath the mesh config, for settings that several revisions share", text(func(e *environment) *string { return &e.sharedMesh })},
		{"PILOT_HTTP10", "false", "all proxies take requests in HTTP/1.0, too; a single one does with HTTP10=1 in the metadata of its node", boolean(func(e *environment) *bool { return &e.generate.HTTP10 })},
	}
}

// meshSettings are what the mesh config and the networks say. Nobody writes to
// them.
type meshSettings struct {
	mesh     *meshv1alpha1.MeshConfig
	networks *meshv1alpha1.MeshNetworks
}

// meshPart is the mesh config, or the networks: what is read of them, and what
// it means.
type meshPart struct {
	name string // for metrics
	// find gives the documents, each over the one before, and where the last one
	// is from. No documents: there is nothing.
	find  func() (docs [][]byte, from string, err error)
	parse func(to *meshSettings, docs [][]byte) error
	// unknown is for fields that nobody knows.
	unknown proto.Message

	taken [][]byte // in force
	tried [][]byte // looked at last, in vain
	said  string   // about it
}

// meshFollower follows the mesh config and the networks: in files, or where there
// are none in a ConfigMap. A change that is wrong is logged and changes nothing.
type meshFollower struct {
	meshFile, networksFile string
	maps                   *kube.ConfigMaps // nil if none are read
	own, shared            string           // names of ConfigMaps; empty are not read
	namespace              string
	log                    *slog.Logger
	reloads                *prometheus.CounterVec
	rejected               *prometheus.GaugeVec

	parts   []*meshPart // of the goroutine of run, once it runs
	changed chan struct{}
	current atomic.Pointer[meshSettings]
}

// newMesh reads the mesh config and the networks. Missing ones are fine.
func (s *server) newMesh(ctx context.Context, f flags, env environment, reg prometheus.Registerer) error {
	m := &meshFollower{
		meshFile: f.meshConfig, networksFile: f.networksConfig, namespace: env.podNamespace, changed: make(chan struct{}, 1),
		log: s.log.With("component", "control"),
		reloads: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "outrigger_control_mesh_config_reloads_total", Help: "Number of changes of the mesh config and of the networks, by result: applied, rejected.",
		}, []string{"source", "result"}),
		rejected: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "outrigger_control_mesh_config_rejected", Help: "1 while what the mesh config, or the networks, say now is not taken and the last good ones are in force.",
		}, []string{"source"}),
	}
	for _, c := range []prometheus.Collector{m.reloads, m.rejected} {
		if err := reg.Register(c); err != nil {
			return fmt.Errorf("registering metrics of the mesh config: %w", err)
		}
	}
	m.parts = []*meshPart{
		{name: "mesh", find: m.findMesh, parse: parseMesh, unknown: &meshv1alpha1.MeshConfig{}},
		{name: "networks", find: m.findNetworks, parse: parseNetworks, unknown: &meshv1alpha1.MeshNetworks{}},
	}
	for _, p := range m.parts {
		m.rejected.WithLabelValues(p.name).Set(0)
	}
	if err := m.followMaps(ctx, s.kube, f, env); err != nil {
		return err
	}
	first := &meshSettings{}
	for _, p := range m.parts {
		docs, from, err := p.find()
		if err == nil {
			err = p.parse(first, docs)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", from, err)
		}
		p.taken = docs
		m.warn(p, from, nil, docs)
	}
	m.warnFields(meshconfig.Default(), first.mesh)
	m.current.Store(first)
	s.follower, s.mesh, s.networks = m, first.mesh, first.networks
	return nil
}

// followMaps reads the ConfigMaps that count: where objects come from the cluster
// so does the mesh config, unless there is a file.
func (m *meshFollower) followMaps(ctx context.Context, client *kube.Client, f flags, env environment) (err error) {
	if client == nil {
		if env.sharedMesh != "" {
			m.log.Warn("SHARED_MESH_CONFIG has no effect: there is no cluster", "name", env.sharedMesh)
		}
		return nil
	}
	if _, err := os.Stat(m.meshFile); errors.Is(err, fs.ErrNotExist) && f.configDir == "" {
		if m.own = meshMap; env.revision != "" && env.revision != "default" {
			m.own += "-" + env.revision
		}
	}
	m.shared = env.sharedMesh
	names := slices.DeleteFunc([]string{m.own, m.shared}, func(name string) bool { return name == "" })
	if len(names) == 0 {
		return nil
	}
	m.maps, err = kube.NewConfigMaps(kube.ConfigMapsConfig{Client: client, Namespace: m.namespace, Names: slices.Compact(names), OnChange: m.wake, Logger: m.log})
	if err != nil {
		return err
	}
	return m.maps.Read(ctx)
}

// followMesh follows the mesh config and the networks until ctx is done.
func (s *server) followMesh(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	m := s.follower
	if m.maps != nil {
		g.Go(func() error { return m.maps.Run(ctx) }) // reads ConfigMaps, wakes the next
	}
	g.Go(func() error { return m.run(ctx, s.adopt, s.pushSettings) }) // reads files, feeds changes
	return g.Wait()
}

func (m *meshFollower) wake() {
	select {
	case m.changed <- struct{}{}:
	default: // one wish is enough
	}
}

// findMesh gives the mesh config above the shared one.
func (m *meshFollower) findMesh() (docs [][]byte, from string, err error) {
	if m.shared != "" {
		if text, ok := m.maps.Get(m.shared)[meshKey]; ok {
			docs, from = append(docs, []byte(text)), m.mapName(m.shared)
		}
	}
	own, ownFrom, err := m.find(m.meshFile, meshKey)
	if err != nil || own != nil {
		return append(docs, own), ownFrom, err
	}
	return docs, from, nil
}

// findNetworks gives the networks.
func (m *meshFollower) findNetworks() (docs [][]byte, from string, err error) {
	own, from, err := m.find(m.networksFile, networksKey)
	if err != nil || own != nil {
		return [][]byte{own}, from, err
	}
	return nil, from, nil
}

// find reads a file or, if it is not there, a key of the ConfigMap; nil if there
// is none of them.
func (m *meshFollower) find(file, key string) (doc []byte, from string, err error) {
	doc, err = os.ReadFile(file)
	switch {
	case err == nil:
		return doc, file, nil
	case !errors.Is(err, fs.ErrNotExist):
		return nil, file, err
	case m.own == "":
		return nil, file, nil
	}
	if text, ok := m.maps.Get(m.own)[key]; ok {
		return []byte(text), m.mapName(m.own), nil
	}
	return nil, m.mapName(m.own), nil
}

func (m *meshFollower) mapName(name string) string { return "ConfigMap " + m.namespace + "/" + name }

func parseMesh(to *meshSettings, docs [][]byte) (err error) {
	to.mesh, err = meshconfig.Parse(docs...)
	return err
}

func parseNetworks(to *meshSettings, docs [][]byte) (err error) {
	if len(docs) == 0 {
		to.networks = nil
		return nil
	}
	to.networks, err = meshconfig.ParseNetworks(docs[len(docs)-1])
	return err
}

// run follows the files and ConfigMaps until ctx is done. Apply is given what
// they say now, and what they said; what it refuses is not taken. Done is called
// when something is in force.
func (m *meshFollower) run(ctx context.Context, apply func(next, before *meshSettings) error, done func()) error {
	w := newFileWatch(m.log, m.meshFile, m.networksFile)
	defer w.close()
	timer := time.NewTimer(0)
	defer timer.Stop()
	since := time.Time{}
	for {
		// Cases: the end; a file changed; events were lost; a ConfigMap changed;
		// it is quiet, or time for a look.
		select {
		case <-ctx.Done():
			return nil
		case e := <-w.events():
			if !w.concerns(e) {
				continue
			}
		case err := <-w.faults(): // looking at all is what helps
			m.log.Debug("an event of the mesh config may be lost; it is read again", "component", "control", "err", err)
		case <-m.changed:
		case <-timer.C:
			w.aim() // first, so that nothing falls between
			m.look(apply, done)
			since = time.Time{}
			timer.Reset(meshRescan)
			continue
		}
		if since.IsZero() {
			since = time.Now()
		}
		timer.Reset(min(meshQuiet, max(0, meshBusy-time.Since(since))))
	}
}

// look takes what changed since the last time.
func (m *meshFollower) look(apply func(next, before *meshSettings) error, done func()) {
	for _, p := range m.parts {
		docs, from, err := p.find()
		if err == nil && p.said != "" && equalDocs(docs, p.tried) {
			continue // still wrong
		}
		if err == nil && equalDocs(docs, p.taken) {
			if p.said != "" {
				m.log.Info("the mesh config is again what is in force", "source", from)
			}
			p.said = ""
			m.rejected.WithLabelValues(p.name).Set(0)
			continue
		}
		before := m.current.Load()
		next := *before
		if err == nil {
			err = p.readable(docs)
		}
		if err == nil {
			err = p.parse(&next, docs)
		}
		if err == nil {
			err = apply(&next, before)
		}
		if err != nil {
			m.reject(p, docs, from, err)
			continue
		}
		m.current.Store(&next)
		done()
		m.warn(p, from, p.taken, docs)
		if p.name == "mesh" {
			m.warnFields(before.mesh, next.mesh)
		}
		p.taken, p.said = docs, ""
		m.rejected.WithLabelValues(p.name).Set(0)
		m.reloads.WithLabelValues(p.name, "applied").Inc()
		m.log.Info("a change of the mesh config is in force", "source", from)
	}
}

// readable refuses what is gone or empty: that is what a file looks like while it
// is written, and nobody takes all settings back in this way.
func (p *meshPart) readable(docs [][]byte) error {
	switch {
	case len(p.taken) == 0:
		return nil
	case len(docs) < len(p.taken):
		return errors.New("it is gone; to return to the defaults write {}")
	}
	last, before := docs[len(docs)-1], p.taken[len(p.taken)-1]
	if len(bytes.TrimSpace(last)) == 0 && len(bytes.TrimSpace(before)) > 0 {
		return errors.New("it is empty; to return to the defaults write {}")
	}
	return nil
}

// reject says once what is wrong.
func (m *meshFollower) reject(p *meshPart, docs [][]byte, from string, err error) {
	if p.said != err.Error() || !equalDocs(docs, p.tried) {
		m.log.Warn("a change of the mesh config is not taken; the last good one stays in force", "source", from, "err", err)
		m.reloads.WithLabelValues(p.name, "rejected").Inc()
	}
	p.tried, p.said = docs, err.Error()
	m.rejected.WithLabelValues(p.name).Set(1)
}

// warn names fields that nobody knows, if they are news.
func (m *meshFollower) warn(p *meshPart, from string, before, docs [][]byte) {
	known := map[string]bool{}
	for _, doc := range before {
		for _, name := range meshconfig.Unknown(doc, p.unknown) {
			known[name] = true
		}
	}
	for _, doc := range docs {
		for _, name := range meshconfig.Unknown(doc, p.unknown) {
			if !known[name] {
				known[name] = true
				m.log.Warn("the mesh config has a field that is not known and has no effect", "source", from, "name", name)
			}
		}
	}
}

// warnFields names fields without effect that were changed.
func (m *meshFollower) warnFields(before, next *meshv1alpha1.MeshConfig) {
	had := withoutEffect(before)
	for _, field := range withoutEffect(next) {
		if !slices.Contains(had, field) {
			m.log.Warn("a field of the mesh config has no effect in this version", "source", m.meshFile, "name", field)
		}
	}
}

func equalDocs(a, b [][]byte) bool { return slices.EqualFunc(a, b, bytes.Equal) }
