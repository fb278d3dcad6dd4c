// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package kube

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/tools/cache"
)

const (
	configMapRetry = time.Second
	configMapTry   = 10 * time.Second
)

// ConfigMapsConfig is the configuration of ConfigMaps.
type ConfigMapsConfig struct {
	Client    *Client
	Namespace string
	Names     []string
	// OnChange is called after a change is visible through Get. It must not block.
	OnChange func()
	Logger   *slog.Logger // nil means slog.Default()
}

// ConfigMaps follows ConfigMaps of one namespace by name. It requires permission to get, list and
// watch them.
type ConfigMaps struct {
	cfg ConfigMapsConfig

	mu   sync.RWMutex // guards data
	data map[string]map[string]string
}

// NewConfigMaps returns ConfigMaps that are empty until Read or Run is called.
func NewConfigMaps(cfg ConfigMapsConfig) (*ConfigMaps, error) {
	if cfg.Client == nil || cfg.OnChange == nil || cfg.Namespace == "" {
		return nil, errors.New("ConfigMaps: they need a cluster, a namespace, and a receiver of changes")
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	return &ConfigMaps{cfg: cfg, data: map[string]map[string]string{}}, nil
}

// Get returns the data of a ConfigMap, or nil if it does not exist. The caller must not modify it.
func (c *ConfigMaps) Get(name string) map[string]string {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return c.data[name]
}

// Read reads each ConfigMap once. It retries until ctx is done if the cluster does not answer. A
// ConfigMap without read permission is treated as missing, with a warning.
func (c *ConfigMaps) Read(ctx context.Context) error {
	for _, name := range c.cfg.Names {
		for said := false; ; said = true {
			err := c.read(ctx, name)
			if err == nil {
				break
			}
			if !said {
				c.cfg.Logger.Warn("a ConfigMap cannot be read; retrying", "name", name, "namespace", c.cfg.Namespace, "err", err)
			}
			select {
			case <-ctx.Done():
				return fmt.Errorf("read ConfigMap %s/%s: %w", c.cfg.Namespace, name, err)
			case <-time.After(configMapRetry):
			}
		}
	}
	return nil
}

func (c *ConfigMaps) read(ctx context.Context, name string) error {
	ctx, cancel := context.WithTimeout(ctx, configMapTry)
	defer cancel()
	found, err := c.cfg.Client.api.configMaps(c.cfg.Namespace).Get(ctx, name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return nil
	case apierrors.IsForbidden(err):
		c.cfg.Logger.Warn("no permission to read a ConfigMap, which is treated as missing: grant the service account the rights to get, list and watch it",
			"name", name, "namespace", c.cfg.Namespace, "err", err)
		return nil
	case err != nil:
		return err
	}
	c.put(name, contents(found))
	return nil
}

// Run follows the ConfigMaps until ctx is done.
func (c *ConfigMaps) Run(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	for _, name := range c.cfg.Names {
		g.Go(func() error { return c.follow(ctx, name) })
	}
	return g.Wait()
}

func (c *ConfigMaps) follow(ctx context.Context, name string) error {
	var running sync.WaitGroup
	defer running.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	take := func(m *corev1.ConfigMap, data map[string]string) {
		if m.Name == name && c.put(name, data) {
			c.cfg.OnChange()
		}
	}
	maps, synced, err := selected[*corev1.ConfigMap, *corev1.ConfigMapList]{
		source: c.cfg.Client.api.configMaps(c.cfg.Namespace), kind: "ConfigMap", example: &corev1.ConfigMap{}, strip: stripConfigMap,
		fields: fields.OneTermEqualSelector(metav1.ObjectNameField, name).String(),
		set:    func(m *corev1.ConfigMap) { take(m, contents(m)) },
		gone:   func(m *corev1.ConfigMap) { take(m, nil) },
	}.follow(ctx, &running, c.cfg.Logger)
	if err != nil {
		return err
	}
	if cache.WaitForCacheSync(ctx.Done(), synced) && len(maps.GetStore().ListKeys()) == 0 && c.put(name, nil) {
		c.cfg.OnChange() // deleted between Read and now
	}
	<-ctx.Done()
	return nil
}

// contents returns the data of a ConfigMap. It never returns nil, because a ConfigMap without data
// exists.
func contents(m *corev1.ConfigMap) map[string]string {
	if m.Data == nil {
		return map[string]string{}
	}
	return m.Data
}

// put stores the current data of a ConfigMap and reports whether it changed.
func (c *ConfigMaps) put(name string, data map[string]string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	before, there := c.data[name]
	if there == (data != nil) && maps.Equal(before, data) {
		return false
	}
	if data == nil {
		delete(c.data, name)
	} else {
		c.data[name] = data
	}
	return true
}
