// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package meshsettings

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
	"github.com/outrigger-mesh/outrigger/internal/filewatch"
)

const (
	// rescanEvery is how often the mesh config is looked at, in case an event was
	// lost; quietTime how long a file is left alone after one: it may be half
	// written.
	rescanEvery = 30 * time.Second
	quietTime   = 50 * time.Millisecond
	// busyTime bounds how long a file that is never quiet is not read.
	busyTime = 10 * quietTime

	// The ConfigMap of the mesh config and its keys are Istio's; those of a
	// revision have it in their name.
	ownMap      = "istio"
	meshKey     = "mesh"
	networksKey = "meshNetworks"
)

// Settings are what the mesh config and the networks say. Nobody writes to
// those in force.
type Settings struct {
	Mesh     *meshv1alpha1.MeshConfig
	Networks *meshv1alpha1.MeshNetworks

	meshDocs, networksDocs []document
}

// Place returns where a field of the mesh config is written, as "file:line".
func (s *Settings) Place(field string) string { return place(s.meshDocs, field) }

// Sources returns the files or ConfigMaps that the mesh config and the networks were read from, without
// those beneath; empty if there are none.
func (s *Settings) Sources() (mesh, networks string) {
	return lastOf(s.meshDocs), lastOf(s.networksDocs)
}

// part is the mesh config, or the networks: what is read of them, and what
// it means.
type part struct {
	name string // for metrics
	// find returns the documents, each over the one before, and where the last one
	// is from. No documents: there is nothing.
	find  func() (docs [][]byte, from string, err error)
	parse func(to *Settings, docs [][]byte) error
	docs  func(of *Settings) *[]document // those that the settings were parsed from
	// unknown is for fields that nobody knows.
	unknown proto.Message

	taken [][]byte // in force
	tried [][]byte // looked at last, in vain
	said  string   // about it
}

// Config configures a Follower.
type Config struct {
	File, NetworksFile string       // need not be there
	Shared             string       // ConfigMap beneath the mesh config; empty means none
	Client             *kube.Client // nil if no ConfigMaps are read
	Namespace          string       // of the ConfigMaps
	Revision           string       // of the control plane: the ConfigMap of its mesh config has it in its name
	// FilesOnly is for objects that do not come from the cluster: then only
	// Shared comes from there.
	FilesOnly  bool
	Logger     *slog.Logger
	Registerer prometheus.Registerer
	// Fault is called with what is wrong and the error, and with no error once it is well again; nil
	// means nobody listens.
	Fault func(what, err string)
}

// Follower follows the mesh config and the networks: in files, or where there
// are none in a ConfigMap. A change that is wrong is logged and changes nothing.
type Follower struct {
	cfg      Config
	maps     *kube.ConfigMaps // nil if none are read
	own      string           // ConfigMap with the mesh config; empty if it is not read
	log      *slog.Logger
	reloads  *prometheus.CounterVec
	rejected *prometheus.GaugeVec

	parts   []*part // of the goroutine of follow, once it runs
	changed chan struct{}
	current atomic.Pointer[Settings]
}

// New reads the mesh config and the networks. Missing ones are fine.
func New(ctx context.Context, cfg Config) (*Follower, error) {
	m := &Follower{
		cfg: cfg, changed: make(chan struct{}, 1), log: cfg.Logger,
		reloads: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "outrigger_control_mesh_config_reloads_total", Help: "Number of changes of the mesh config and of the networks, by result: applied, rejected.",
		}, []string{"source", "result"}),
		rejected: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "outrigger_control_mesh_config_rejected", Help: "1 while the current mesh config or networks are rejected and the last valid ones are in force.",
		}, []string{"source"}),
	}
	for _, c := range []prometheus.Collector{m.reloads, m.rejected} {
		if err := cfg.Registerer.Register(c); err != nil {
			return nil, fmt.Errorf("registering metrics of the mesh config: %w", err)
		}
	}
	m.parts = []*part{
		{name: "mesh", find: m.findMesh, parse: parseMesh, docs: func(of *Settings) *[]document { return &of.meshDocs }, unknown: &meshv1alpha1.MeshConfig{}},
		{name: "networks", find: m.findNetworks, parse: parseNetworks, docs: func(of *Settings) *[]document { return &of.networksDocs }, unknown: &meshv1alpha1.MeshNetworks{}},
	}
	for _, p := range m.parts {
		m.rejected.WithLabelValues(p.name).Set(0)
	}
	if err := m.readMaps(ctx); err != nil {
		return nil, err
	}
	first := &Settings{}
	for _, p := range m.parts {
		docs, from, err := p.find()
		if err == nil {
			err = p.parse(first, docs)
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", from, err)
		}
		p.taken = docs
		*p.docs(first) = m.documents(docs, from)
		m.warn(p, nil, *p.docs(first))
	}
	m.warnFields(meshconfig.Default(), first)
	m.current.Store(first)
	return m, nil
}

// Current returns the settings in force.
func (m *Follower) Current() *Settings { return m.current.Load() }

// readMaps reads the ConfigMaps that count: where objects come from the cluster
// so does the mesh config, unless there is a file.
func (m *Follower) readMaps(ctx context.Context) (err error) {
	if m.cfg.Client == nil {
		if m.cfg.Shared != "" {
			m.log.Warn("SHARED_MESH_CONFIG has no effect: there is no cluster", "name", m.cfg.Shared)
		}
		return nil
	}
	if _, err := os.Stat(m.cfg.File); errors.Is(err, fs.ErrNotExist) && !m.cfg.FilesOnly {
		if m.own = ownMap; m.cfg.Revision != "" && m.cfg.Revision != "default" {
			m.own += "-" + m.cfg.Revision
		}
	}
	names := slices.DeleteFunc([]string{m.own, m.cfg.Shared}, func(name string) bool { return name == "" })
	if len(names) == 0 {
		return nil
	}
	m.maps, err = kube.NewConfigMaps(kube.ConfigMapsConfig{Client: m.cfg.Client, Namespace: m.cfg.Namespace, Names: slices.Compact(names), OnChange: m.wake, Logger: m.log})
	if err != nil {
		return err
	}
	return m.maps.Read(ctx)
}

// Run follows the mesh config and the networks until ctx is done. It calls apply
// with what they say now and what is in force; apply may change the former, and
// an error leaves the latter in force. It calls done when a change is in force.
func (m *Follower) Run(ctx context.Context, apply func(next, before *Settings) error, done func()) error {
	g, ctx := errgroup.WithContext(ctx)
	if m.maps != nil {
		g.Go(func() error { return m.maps.Run(ctx) }) // reads ConfigMaps, wakes the next
	}
	g.Go(func() error { return m.follow(ctx, apply, done) }) // reads files, feeds changes
	return g.Wait()
}

func (m *Follower) wake() {
	select {
	case m.changed <- struct{}{}:
	default: // one wish is enough
	}
}

// findMesh returns the mesh config above the shared one.
func (m *Follower) findMesh() (docs [][]byte, from string, err error) {
	if m.cfg.Shared != "" {
		if text, ok := m.maps.Get(m.cfg.Shared)[meshKey]; ok {
			docs, from = append(docs, []byte(text)), m.mapName(m.cfg.Shared)
		}
	}
	own, ownFrom, err := m.find(m.cfg.File, meshKey)
	if err != nil || own != nil {
		return append(docs, own), ownFrom, err
	}
	return docs, from, nil
}

// findNetworks returns the networks.
func (m *Follower) findNetworks() (docs [][]byte, from string, err error) {
	own, from, err := m.find(m.cfg.NetworksFile, networksKey)
	if err != nil || own != nil {
		return [][]byte{own}, from, err
	}
	return nil, from, nil
}

// find reads a file or, if it is not there, a key of the ConfigMap; nil if there
// is none of them.
func (m *Follower) find(file, key string) (doc []byte, from string, err error) {
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

func (m *Follower) mapName(name string) string { return "ConfigMap " + m.cfg.Namespace + "/" + name }

// documents returns documents of find with where each is from.
func (m *Follower) documents(docs [][]byte, from string) []document {
	out := make([]document, len(docs))
	for i, text := range docs {
		out[i] = document{from, text}
	}
	if len(out) > 1 {
		out[0].from = m.mapName(m.cfg.Shared)
	}
	return out
}

func parseMesh(to *Settings, docs [][]byte) (err error) {
	to.Mesh, err = meshconfig.Parse(docs...)
	return err
}

func parseNetworks(to *Settings, docs [][]byte) (err error) {
	if len(docs) == 0 {
		to.Networks = nil
		return nil
	}
	to.Networks, err = meshconfig.ParseNetworks(docs[len(docs)-1])
	return err
}

// follow follows the files and ConfigMaps until ctx is done.
func (m *Follower) follow(ctx context.Context, apply func(next, before *Settings) error, done func()) error {
	w, err := filewatch.New(m.cfg.File, m.cfg.NetworksFile)
	if err != nil {
		m.log.Warn("the mesh config cannot be watched; it is polled instead", "duration", rescanEvery, "err", err)
	}
	defer w.Close()
	timer := time.NewTimer(0)
	defer timer.Stop()
	since := time.Time{}
	for {
		// Cases: the end; a file changed; events were lost; a ConfigMap changed;
		// it is quiet, or time for a look.
		select {
		case <-ctx.Done():
			return nil
		case e := <-w.Events():
			if !w.Concerns(e) {
				continue
			}
		case err := <-w.Errors(): // looking at all is what helps
			m.log.Debug("an event of the mesh config may be lost; it is read again", "component", "control", "err", err)
		case <-m.changed:
		case <-timer.C:
			w.Aim() // first, so that nothing falls between
			m.look(apply, done)
			since = time.Time{}
			timer.Reset(rescanEvery)
			continue
		}
		if since.IsZero() {
			since = time.Now()
		}
		timer.Reset(min(quietTime, max(0, busyTime-time.Since(since))))
	}
}

// look takes what changed since the last time.
func (m *Follower) look(apply func(next, before *Settings) error, done func()) {
	for _, p := range m.parts {
		docs, from, err := p.find()
		if err == nil && p.said != "" && equalDocs(docs, p.tried) {
			continue // still wrong
		}
		if err == nil && equalDocs(docs, p.taken) {
			if p.said != "" {
				m.log.Info("the mesh config is valid again and in force", "source", from)
			}
			p.said = ""
			m.rejection(p, "")
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
		*p.docs(&next) = m.documents(docs, from)
		if err == nil {
			err = apply(&next, before)
		}
		if err != nil {
			m.reject(p, docs, from, err)
			continue
		}
		m.current.Store(&next)
		done()
		m.warn(p, p.taken, *p.docs(&next))
		if p.name == "mesh" {
			m.warnFields(before.Mesh, &next)
		}
		p.taken, p.said = docs, ""
		m.rejection(p, "")
		m.reloads.WithLabelValues(p.name, "applied").Inc()
		m.log.Info("a change of the mesh config is in force", "source", from)
	}
}

// readable refuses what is gone or empty: that is what a file looks like while it
// is written, and nobody takes all settings back in this way.
func (p *part) readable(docs [][]byte) error {
	switch {
	case len(p.taken) == 0:
		return nil
	case len(docs) < len(p.taken):
		return errors.New("it was deleted; to return to the defaults, write {}")
	}
	last, before := docs[len(docs)-1], p.taken[len(p.taken)-1]
	if len(bytes.TrimSpace(last)) == 0 && len(bytes.TrimSpace(before)) > 0 {
		return errors.New("it is empty; to return to the defaults, write {}")
	}
	return nil
}

// reject says once what is wrong.
func (m *Follower) reject(p *part, docs [][]byte, from string, err error) {
	if p.said != err.Error() || !equalDocs(docs, p.tried) {
		m.log.Warn("mesh config change rejected; the last good one stays in force", "source", from, "err", err)
		m.reloads.WithLabelValues(p.name, "rejected").Inc()
	}
	p.tried, p.said = docs, err.Error()
	m.rejection(p, from+": "+err.Error())
}

// rejection reports why the newest version of a part is rejected; an empty reason means that it is in force.
func (m *Follower) rejection(p *part, reason string) {
	m.rejected.WithLabelValues(p.name).Set(float64(min(1, len(reason))))
	if m.cfg.Fault != nil {
		m.cfg.Fault("a change of the mesh config ("+p.name+") is rejected; the last good one stays in force", reason)
	}
}

// warn names fields that nobody knows, if they are news.
func (m *Follower) warn(p *part, before [][]byte, docs []document) {
	known := map[string]bool{}
	for _, doc := range before {
		for _, name := range meshconfig.Unknown(doc, p.unknown) {
			known[name] = true
		}
	}
	for _, doc := range docs {
		for _, name := range meshconfig.Unknown(doc.text, p.unknown) {
			if !known[name] {
				known[name] = true
				m.log.Warn("an unknown field of the mesh config has no effect", "source", place([]document{doc}, name), "name", name)
			}
		}
	}
}

// warnFields names fields without effect that were changed.
func (m *Follower) warnFields(before *meshv1alpha1.MeshConfig, next *Settings) {
	had := withoutEffect(before)
	for _, field := range withoutEffect(next.Mesh) {
		if !slices.Contains(had, field) {
			m.log.Warn("a field of the mesh config has no effect in this version", "source", next.Place(field), "name", field)
		}
	}
}

func equalDocs(a, b [][]byte) bool { return slices.EqualFunc(a, b, bytes.Equal) }
