// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package server

import (
	"errors"
	"fmt"
	"time"

	"github.com/outrigger-mesh/outrigger/controlplane/ca"
	"github.com/outrigger-mesh/outrigger/controlplane/generate"
	"github.com/outrigger-mesh/outrigger/controlplane/kube"
	"github.com/outrigger-mesh/outrigger/controlplane/patch"
	"github.com/outrigger-mesh/outrigger/internal/sdnotify"
	"github.com/outrigger-mesh/outrigger/internal/tlspolicy"
)

// Config configures a control plane. Errors name the flags and environment
// variables of outrigger-control that set a field.
type Config struct {
	Version   string // of the program
	Domain    string // DNS domain of the mesh
	Namespace string // of the control plane
	Revision  string // of the control plane
	PodName   string // name of this replica in elections

	ConfigDir string // directory of objects; used if the mesh config names no sources
	StateDir  string // of the self-signed authority; empty means a default, or a Secret of the cluster
	Mesh      MeshConfig
	Cluster   ClusterConfig
	Remotes   RemotesConfig
	MCS       kube.MCSConfig

	Listen                ListenConfig
	TLS                   TLSConfig
	Compliance            tlspolicy.Policy // restricts all TLS but that with API servers
	Keepalive             KeepaliveConfig
	ConnectionsPerAddress int              // to each gRPC port
	Linger                time.Duration    // before the shutdown: all ports serve, and /ready fails
	Hurry                 <-chan struct{}  // closed, it ends Linger; nil means never
	Shutdown              time.Duration    // time limit of the shutdown
	Manager               sdnotify.Manager // that started the program
	Profile               bool             // serve pprof to loopback peers
	DebugHTTP             bool             // serve /debug over HTTP

	DebounceAfter time.Duration // quiet time that ends a burst of changes
	DebounceMax   time.Duration // longest time for which changes are collected
	PushWorkers   int           // number of streams that are prepared concurrently
	CanaryPush    bool          // sends a change to one proxy of each group first
	VHDS          bool          // sends virtual hosts as separate resources
	Generate      generate.Config
	Patches       patch.Limits // what EnvoyFilters may contain

	Callers      CallersConfig
	CA           CAConfig
	CustomHosts  string // additional names for the own certificate, comma-separated
	DenyList     string // file; empty denies nobody
	KeySets      KeySetsConfig
	MCPReaders   []string // accounts that may read all objects; empty means all of Namespace
	Credentials  CredentialsConfig
	Status       StatusConfig
	Health       bool // health reports of agents have an effect
	GatewayAPI   GatewayAPIConfig
	Registration RegistrationConfig
	Inject       InjectConfig
	Replicas     []string // host:port of the replicas; empty means that there are no others
}

// MeshConfig are the sources of the mesh config and the networks.
type MeshConfig struct {
	File, NetworksFile string
	Shared             string // ConfigMap with defaults of the mesh config; empty means none
}

// ListenConfig has the address of each port. An empty address turns the port off, and
// its HTTP paths move to HTTP.
type ListenConfig struct {
	Plaintext, Secure, HTTP, Webhooks, Monitoring string
	Admin                                         string // path of a socket for administrators
}

// KeepaliveConfig configures the keepalive of connections.
type KeepaliveConfig struct {
	Interval time.Duration // of silence before a probe
	Timeout  time.Duration // of a probe
	MaxAge   time.Duration // of a connection; 0 means no limit
}

// CallersConfig configures the accepted tokens.
type CallersConfig struct {
	JWTRule             string   // Istio's JWTRule as JSON
	Issuer, Audience    string   // of tokens, with OpenID Connect Discovery
	Hosts               []string // additional hosts from which keys may be fetched
	KubernetesAudiences []string
	RequireAudience     bool // reject tokens of Kubernetes without an audience
}

// CAConfig configures the certificate authority.
type CAConfig struct {
	Signer       SignerConfig
	Enabled      bool
	PluginDir    string
	DefaultTTL   time.Duration
	MaxTTL       time.Duration
	Root         ca.RootConfig
	Propagation  time.Duration // of a new root before it signs; 0 means until each workload has renewed
	CallerRate   float64       // requests per second; negative means no limit, as below
	IdentityRate float64
	NodeAccounts map[string]bool // namespace/account of node proxies
}

// SignerConfig configures signers of the cluster.
type SignerConfig struct {
	External string // RegistrationAuthority, or empty
	Name     string
	Domain   string
}

// RemotesConfig configures remote clusters.
type RemotesConfig struct {
	On      bool
	Allowed string // insecure options that their kubeconfigs may have, comma-separated
	Wait    time.Duration
}

// CredentialsConfig configures the source of gateway certificates, and which accounts
// may read them.
type CredentialsConfig struct {
	Source  string   // URL; empty serves none
	Readers []string // namespace/account
}

// StatusConfig configures the status of objects.
type StatusConfig struct {
	On             bool
	Workers, Burst int
	QPS            float64
}

// GatewayAPIConfig configures the Gateway API and Ingresses.
type GatewayAPIConfig struct {
	On, Status       bool
	Deploy           bool // deploy the proxies of Gateways; it needs a cluster and the injector
	IngressNamespace string
}

// RegistrationConfig configures the auto-registration of machines.
type RegistrationConfig struct {
	On, StrictAddress bool
	Grace             time.Duration
	Instance          string // name of this replica in entries; empty means host and port
}

// stateDir returns the directory of the certificate authority. Other state is stored
// beside it.
func (c *Config) stateDir() string {
	if c.StateDir != "" {
		return c.StateDir
	}
	return "./var/lib/outrigger/ca"
}

// check returns an error for an invalid configuration.
func (c *Config) check() error {
	if err := c.Cluster.checkRegistries(); err != nil {
		return err
	}
	if c.Shutdown < 0 {
		return fmt.Errorf("--shutdownDuration %s: write a duration of at least 0s, such as 10s", c.Shutdown)
	}
	if c.Listen.Secure == "" && c.Listen.Plaintext == "" {
		return errors.New("--secureGRPCAddr and --grpcAddr are both empty: no proxy could connect")
	}
	if c.Listen.HTTP == "" {
		return errors.New("--httpAddr is empty: /ready needs an address")
	}
	return nil
}
