// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package wasm

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"path/filepath"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/singleflight"

	"github.com/outrigger-mesh/outrigger/internal/tlspolicy"
)

// Config configures a [Cache].
type Config struct {
	// Dir is the absolute path of the cache directory. Default: /var/lib/istio/data.
	Dir string
	// FileDir is the directory that file URLs may refer to. If empty, file URLs are rejected.
	FileDir string
	// DockerConfigDir contains the config.json with the registry credentials for plugins that name
	// none. If empty, there are none.
	DockerConfigDir string
	// InsecureRegistries are hosts, with the port if the URL has one, whose TLS certificates are
	// not verified and that may receive credentials in plaintext; "*" means all.
	InsecureRegistries []string
	// AllowedHosts are hosts (host, host:port, address or network) that may be contacted although
	// they are loopback, link-local or metadata addresses.
	AllowedHosts []string
	// Expiry is how long an unused module is kept. Default: 24h.
	Expiry time.Duration
	// PurgeInterval is the interval at which unused modules are removed. Default: 1h.
	PurgeInterval time.Duration
	// HTTPTimeout is the timeout of one attempt to download over HTTP. Default: 15s.
	HTTPTimeout time.Duration
	// HTTPMaxAttempts is the maximum number of attempts per download. Default: 5.
	HTTPMaxAttempts int
	// MaxCacheBytes limits the total size of the modules on disk, including downloads in progress.
	// The least recently used modules are evicted. Default: 1 GiB.
	MaxCacheBytes int64
	// TLS restricts the TLS of downloads.
	TLS        tlspolicy.Policy
	Logger     *slog.Logger
	Registerer prometheus.Registerer // nil means no metrics
}

const (
	defaultDir           = "/var/lib/istio/data"
	defaultExpiry        = 24 * time.Hour
	defaultPurgeInterval = time.Hour
	defaultHTTPTimeout   = 15 * time.Second
	defaultHTTPAttempts  = 5
	defaultCacheBytes    = 1 << 30
	maxModuleBytes       = 256 << 20
	// maxDownloads is the maximum number of concurrent downloads.
	maxDownloads = 8
	// failureTTL is how long a failed download is not retried, because a single push often results
	// in several responses.
	failureTTL  = 10 * time.Second
	maxFailures = 256
)

// Cache downloads Wasm modules, stores them and rewrites configurations that refer to them.
type Cache struct {
	cfg     Config
	log     *slog.Logger
	metrics *metrics
	store   *store
	net     *network
	// maxModule is maxModuleBytes, or less in tests.
	maxModule int64
	// pause is the first delay between two attempts. It is shorter in tests.
	pause time.Duration

	flights singleflight.Group
	slots   chan struct{} // one for each download in progress

	mu       sync.Mutex // guards the fields below
	stopped  bool
	running  map[string]context.CancelFunc // cancel functions of the downloads by key
	failures map[string]failure            // by key; at most maxFailures
	downs    sync.WaitGroup
}

// failure is a recently failed download.
type failure struct {
	err   error
	until time.Time
}

// New returns a cache that includes the modules that an earlier agent left in its directory. The
// directory is created with the first module.
func New(cfg Config) (*Cache, error) {
	cfg.setDefaults()
	if !filepath.IsAbs(cfg.Dir) {
		return nil, fmt.Errorf("the directory for Wasm modules is %q; Envoy needs an absolute path", cfg.Dir)
	}
	if cfg.FileDir != "" && !filepath.IsAbs(cfg.FileDir) {
		return nil, fmt.Errorf("the directory for Wasm modules by file is %q; it must be an absolute path", cfg.FileDir)
	}
	net, err := newNetwork(cfg)
	if err != nil {
		return nil, err
	}
	m := newMetrics(cfg.Registerer)
	return &Cache{
		cfg: cfg, log: cfg.Logger, metrics: m, net: net, maxModule: maxModuleBytes, pause: firstBackoff,
		store:    newStore(storeConfig{dir: cfg.Dir, maxBytes: cfg.MaxCacheBytes, log: cfg.Logger, metrics: m}),
		slots:    make(chan struct{}, maxDownloads),
		running:  map[string]context.CancelFunc{},
		failures: map[string]failure{},
	}, nil
}

func (c *Config) setDefaults() {
	if c.Dir == "" {
		c.Dir = defaultDir
	}
	if c.Expiry <= 0 {
		c.Expiry = defaultExpiry
	}
	if c.PurgeInterval <= 0 {
		c.PurgeInterval = defaultPurgeInterval
	}
	if c.HTTPTimeout <= 0 {
		c.HTTPTimeout = defaultHTTPTimeout
	}
	if c.HTTPMaxAttempts <= 0 {
		c.HTTPMaxAttempts = defaultHTTPAttempts
	}
	if c.MaxCacheBytes <= 0 {
		c.MaxCacheBytes = defaultCacheBytes
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
}

// Run removes unused modules until ctx is done, and then cancels the downloads in progress.
func (c *Cache) Run(ctx context.Context) error {
	defer c.stop()
	tick := time.NewTicker(c.cfg.PurgeInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case now := <-tick.C:
			c.store.purge(now.Add(-c.cfg.Expiry))
		}
	}
}

// stop cancels the downloads and waits for them.
func (c *Cache) stop() {
	c.mu.Lock()
	c.stopped = true
	for _, cancel := range c.running {
		cancel()
	}
	c.mu.Unlock()
	c.downs.Wait()
	for _, t := range []http.RoundTripper{c.net.verified, c.net.unverified} {
		if t, ok := t.(*http.Transport); ok {
			t.CloseIdleConnections()
		}
	}
}
