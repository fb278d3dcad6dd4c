// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package server

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"

	"github.com/outrigger-mesh/outrigger/controlplane/config"
	"github.com/outrigger-mesh/outrigger/controlplane/inject"
	"github.com/outrigger-mesh/outrigger/controlplane/kube"
	"github.com/outrigger-mesh/outrigger/controlplane/meshsettings"
	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/controlplane/webhook"
	"github.com/outrigger-mesh/outrigger/internal/filetree"
	"github.com/outrigger-mesh/outrigger/internal/tlspolicy"
)

// InjectConfig configures the injection of proxies into pods.
type InjectConfig struct {
	On     bool
	Native bool // proxies are native sidecars unless a pod says otherwise
	// Platform is empty, gcp, or openshift, where proxies run as users of the ranges of their namespaces.
	Platform string
	// Dir may have the files config and values, which then replace the ConfigMap; empty means
	// ./var/lib/istio/inject.
	Dir string
}

const (
	// injectorMap is the ConfigMap with the configuration of the injector, and injectorConfig and
	// injectorValues are its keys. They are Istio's; a revision has its name at the end.
	injectorMap    = "istio-sidecar-injector"
	injectorConfig = "config"
	injectorValues = "values"

	injectorFileBytes = 4 << 20
	injectorFileEvery = 5 * time.Second
)

// injection follows the configuration of the injector. A wrong change is logged and changes
// nothing.
type injection struct {
	log        *slog.Logger
	cfg        InjectConfig
	revision   string
	version    string // the tag of images if the values have none
	compliance tlspolicy.Policy
	settings   *meshsettings.Follower
	objects    config.Reader
	deploys    func(namespace string) // called after a change; nil means nobody hears of it

	namespaces *kube.Namespaces // on OpenShift; otherwise nil

	maps    *kube.ConfigMaps // nil with files
	name    string           // of the ConfigMap
	files   []*filetree.Follower
	texts   map[string]string // of the files, by their names
	changed chan struct{}
	said    string // the last error, so that it is logged once
	fault   func(what, err string)

	current  atomic.Pointer[inject.Injector] // without the mesh config
	rejected prometheus.Gauge
}

// newInjection reads the configuration of the injector. It returns nil if injection is off.
func (s *Server) newInjection(cfg Config, reg prometheus.Registerer) (*injection, error) {
	if !cfg.Inject.On {
		return nil, nil
	}
	i := &injection{
		log: s.log.With("component", "inject"), cfg: cfg.Inject, revision: cfg.Revision, version: cfg.Version, compliance: cfg.Compliance, settings: s.settings, objects: s.objects.store,
		deploys: func(namespace string) { s.objects.conversion.deploys(namespace) },
		fault:   s.faults.set,
		texts:   map[string]string{}, changed: make(chan struct{}, 1), name: injectorMap,
		rejected: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "outrigger_control_injector_config_rejected", Help: "1 while the newest configuration of the injector is invalid and the last valid one is used.",
		}),
	}
	if i.cfg.Dir == "" {
		i.cfg.Dir = "./var/lib/istio/inject"
	}
	if err := reg.Register(i.rejected); err != nil {
		return nil, fmt.Errorf("register the metrics of injection: %w", err)
	}
	if r := cfg.Revision; r != "" && r != "default" {
		i.name += "-" + r
	}
	if err := i.followNamespaces(s.kube); err != nil {
		return nil, err
	}
	if _, err := os.Stat(filepath.Join(i.cfg.Dir, injectorConfig)); err == nil {
		return i, i.readFiles()
	} else if !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	var err error
	i.maps, err = kube.NewConfigMaps(kube.ConfigMapsConfig{Client: s.kube, Namespace: cfg.Namespace, Names: []string{i.name}, OnChange: i.wake, Logger: i.log})
	return i, err
}

// followNamespaces prepares to read the users of namespaces of OpenShift.
func (i *injection) followNamespaces(client *kube.Client) (err error) {
	switch {
	case i.cfg.Platform == "" || i.cfg.Platform == "gcp":
		return nil
	case i.cfg.Platform != "openshift":
		return fmt.Errorf("PLATFORM is %q, which is unknown: use openshift or gcp, or leave it empty", i.cfg.Platform)
	case client == nil:
		return errors.New("PLATFORM is openshift, where namespaces define the users of proxies, and there is no cluster to read them from: set --kubeconfig")
	}
	i.namespaces, err = kube.NewNamespaces(kube.NamespacesConfig{
		Client: client, OnChange: i.deploys, Annotations: inject.NamespaceAnnotations, Logger: i.log,
	})
	return err
}

// annotations returns the annotations of a namespace on OpenShift.
func (i *injection) annotations(namespace string) (map[string]string, error) {
	select {
	case <-i.namespaces.Synced():
		return i.namespaces.Annotations(namespace), nil
	default:
		return nil, errors.New("the control plane has not read the namespaces yet, which define the user of the proxy: try again")
	}
}

// readMap reads the ConfigMap as soon as the cluster answers. Validation does not wait for it.
func (i *injection) readMap(ctx context.Context) error {
	if err := i.maps.Read(ctx); err != nil {
		return err
	}
	data := i.maps.Get(i.name)
	if data == nil {
		i.log.Info("there is no ConfigMap of the injector; pods receive the built-in templates", "name", i.name)
	}
	if err := i.load(data[injectorConfig], data[injectorValues]); err != nil {
		i.report("ConfigMap "+i.name, err)
	}
	return nil
}

func (i *injection) wake() {
	select {
	case i.changed <- struct{}{}:
	default: // one token is enough
	}
}

// readFiles reads the files of the injector, which must be valid.
func (i *injection) readFiles() error {
	for _, name := range []string{injectorConfig, injectorValues} {
		path := filepath.Join(i.cfg.Dir, name)
		i.files = append(i.files, filetree.NewFollower(filetree.FollowerConfig{
			Path: path, MaxBytes: injectorFileBytes, Every: injectorFileEvery, Optional: true,
			Take: func(text []byte) error { return i.take(name, string(text)) },
		}))
	}
	if err := i.load("", ""); err != nil {
		return err
	}
	for _, f := range i.files {
		if err := f.Look(); err != nil {
			return fmt.Errorf("%s: %w", f.Path(), err)
		}
	}
	return nil
}

// take applies the text of one file.
func (i *injection) take(name, text string) error {
	before := i.texts[name]
	i.texts[name] = text
	if err := i.load(i.texts[injectorConfig], i.texts[injectorValues]); err != nil {
		i.texts[name] = before
		return err
	}
	return nil
}

// load parses a configuration and, if it is valid, puts it in force.
func (i *injection) load(config, values string) error {
	c, err := inject.ParseConfig([]byte(config))
	if err != nil {
		return err
	}
	v, err := inject.ParseValues([]byte(values), i.version)
	if err != nil {
		return err
	}
	i.current.Store(&inject.Injector{Config: c, Values: v, Revision: i.revision, Native: i.cfg.Native, Compliance: i.compliance})
	if i.deploys != nil {
		i.deploys("") // with other images
	}
	return nil
}

// injector returns the injector in force, with the mesh config in force. It returns nil before a
// valid configuration was read.
func (i *injection) injector() *inject.Injector {
	current := i.current.Load()
	if current == nil {
		return nil
	}
	in := *current
	in.Mesh = i.settings.Current().Mesh
	if i.namespaces != nil {
		in.Annotations = i.annotations
	}
	in.ProxyConfigs = func(namespace string) []*model.Config { return i.objects.List(model.ProxyConfig, namespace) }
	return &in
}

// uninjected returns a problem for each ProxyConfig object if this control plane injects no pods.
func (s *Server) uninjected() (problems []model.Problem) {
	if s.injection != nil {
		return nil
	}
	for _, c := range s.objects.list(model.ProxyConfig) {
		problems = append(problems, model.Problem{
			Object: c.Key, Source: c.Source, Warning: true,
			Reason: "a ProxyConfig has no effect here: it is for pods, and this control plane does not inject; use defaultConfig of the mesh config",
		})
	}
	return problems
}

// report logs an error of the configuration once, and its end.
func (i *injection) report(source string, err error) {
	switch {
	case err != nil:
		i.rejected.Set(1)
		i.fault(injectorFault, source+": "+err.Error())
		if i.said != err.Error() {
			if i.current.Load() == nil {
				i.log.Warn("the configuration of the injector is invalid; pods that need a proxy are refused", "source", source, "err", err)
			} else {
				i.log.Warn("the configuration of the injector is invalid; the last valid one stays in force", "source", source, "err", err)
			}
			i.said = err.Error()
		}
	default:
		i.rejected.Set(0)
		i.fault(injectorFault, "")
		i.said = ""
		i.log.Info("a change of the configuration of the injector is in force", "source", source)
	}
}

// run follows the configuration until ctx is done.
func (i *injection) run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { // the only goroutine that loads
		if i.maps == nil {
			return i.followFiles(ctx)
		}
		if err := i.readMap(ctx); err != nil {
			return nil // ctx is done
		}
		for {
			// Cases: ctx is done; the ConfigMap changed.
			select {
			case <-ctx.Done():
				return nil
			case <-i.changed:
			}
			data := i.maps.Get(i.name)
			if data == nil {
				i.report("ConfigMap "+i.name, errors.New("the ConfigMap was deleted; to return to the defaults, create an empty one"))
				continue
			}
			i.report("ConfigMap "+i.name, i.load(data[injectorConfig], data[injectorValues]))
		}
	})
	if i.maps != nil {
		g.Go(func() error { return i.maps.Run(ctx) }) // reads the ConfigMap, wakes the first
	}
	if i.namespaces != nil {
		g.Go(func() error { return i.namespaces.Run(ctx) }) // reads namespaces, feeds injections
	}
	return g.Wait()
}

// followFiles reads the files again until ctx is done.
func (i *injection) followFiles(ctx context.Context) error {
	tick := time.NewTicker(injectorFileEvery)
	defer tick.Stop()
	for {
		// Cases: ctx is done; it is time to read the files.
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		var errs []error
		for _, f := range i.files {
			if err := f.Look(); err != nil {
				errs = append(errs, fmt.Errorf("%s: %w", f.Path(), err))
			}
		}
		if err := errors.Join(errs...); err != nil || i.said != "" {
			i.report(i.cfg.Dir, err)
		}
	}
}

// newInjectionWebhook creates the handler of pods.
func (s *Server) newInjectionWebhook(cfg Config, reg prometheus.Registerer) (err error) {
	if s.injection, err = s.newInjection(cfg, reg); err != nil || s.injection == nil {
		return err
	}
	handler, err := webhook.NewInjector(webhook.InjectorConfig{Current: s.injection.injector, Logger: s.injection.log, Registerer: reg})
	if err != nil {
		return err
	}
	s.webhooks.Handle("/inject", handler)
	s.webhooks.Handle("/inject/", handler)
	return nil
}
