// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package server

import (
	"errors"
	"fmt"
	"time"

	"github.com/outrigger-mesh/outrigger/controlplane/ca"
	"github.com/outrigger-mesh/outrigger/controlplane/generate"
)

// Config configures a control plane. Errors name the flags and environment
// variables of outrigger-control that set a field.
type Config struct {
	Version   string // of the program
	Domain    string // DNS domain of the mesh
	Namespace string // of the control plane
	Revision  string // of the control plane
	PodName   string // this replica in elections

	ConfigDir string // directory of objects; used if the mesh config names no sources
	StateDir  string // of the self-signed authority; empty means a default, or a Secret of the cluster
	Mesh      MeshConfig
	Cluster   ClusterConfig
	Remotes   RemotesConfig

	Listen                ListenConfig
	TLS                   TLSConfig
	Keepalive             KeepaliveConfig
	ConnectionsPerAddress int           // to each gRPC port
	Shutdown              time.Duration // the longest time that the stop may take
	Profile               bool          // serve pprof to loopback peers
	DebugHTTP             bool          // answer /debug over HTTP

	DebounceAfter time.Duration // quiet time that ends a burst of changes
	DebounceMax   time.Duration // the longest time for which changes are gathered
	PushWorkers   int           // streams that are prepared at a time
	CanaryPush    bool          // sends a change to one proxy of each group first
	VHDS          bool          // virtual hosts are resources of their own
	Generate      generate.Config

	Callers      CallersConfig
	CA           CAConfig
	CustomHosts  string   // more names for the own certificate, with commas between
	DenyList     string   // file; empty denies nobody
	MCPReaders   []string // accounts that may read all objects; empty means those of Namespace
	Credentials  CredentialsConfig
	Status       StatusConfig
	Health       bool // reports of agents count
	GatewayAPI   GatewayAPIConfig
	Registration RegistrationConfig
	Replicas     []string // host:port of the replicas; empty means that there are no others
}

// MeshConfig says where the mesh config and the networks are.
type MeshConfig struct {
	File, NetworksFile string
	Shared             string // ConfigMap beneath the mesh config; empty means none
}

// ListenConfig has the address of each port. An empty one turns the port off;
// what HTTP callers ask there moves to HTTP.
type ListenConfig struct {
	Plaintext, Secure, HTTP, Webhooks, Monitoring string
}

// KeepaliveConfig is about silent and old connections.
type KeepaliveConfig struct {
	Interval time.Duration // of silence before a probe
	Timeout  time.Duration // of a probe
	MaxAge   time.Duration // of a connection; 0 means no limit
}

// CallersConfig says who may call, beside holders of certificates of the mesh.
type CallersConfig struct {
	JWTRule             string   // Istio's JWTRule as JSON
	Issuer, Audience    string   // of tokens, with OpenID Connect Discovery
	Hosts               []string // that may be asked for keys, beside those that follow from the rules
	KubernetesAudiences []string
	RequireAudience     bool // refuse tokens of Kubernetes without an audience
}

// CAConfig is about certificates of workloads.
type CAConfig struct {
	Signer       SignerConfig
	Enabled      bool
	PluginDir    string
	DefaultTTL   time.Duration
	MaxTTL       time.Duration
	Root         ca.RootConfig
	Propagation  time.Duration // of a new root before it signs; 0 means until each workload has renewed
	CallerRate   float64       // requests a second; negative means no limit, as below
	IdentityRate float64
	NodeAccounts map[string]bool // namespace/account of node proxies
}

// SignerConfig is about signers of the cluster.
type SignerConfig struct {
	External string // RegistrationAuthority, or empty
	Name     string
	Domain   string
}

// RemotesConfig is about other clusters.
type RemotesConfig struct {
	On      bool
	Allowed string // what their kubeconfigs may do, with commas between
	Wait    time.Duration
}

// CredentialsConfig says where the certificates of gateways are and who gets
// them.
type CredentialsConfig struct {
	Source  string   // URL; empty serves none
	Readers []string // namespace/account
}

// StatusConfig is about the status of objects.
type StatusConfig struct {
	On             bool
	Workers, Burst int
	QPS            float64
}

// GatewayAPIConfig is about the Gateway API and Ingresses.
type GatewayAPIConfig struct {
	On, Status       bool
	IngressNamespace string
}

// RegistrationConfig is about machines that join a group by themselves.
type RegistrationConfig struct {
	On, StrictAddress bool
	Grace             time.Duration
	Instance          string // name of this replica in entries; empty means one of the host and port
}

// stateDir returns the directory of the certificate authority. What else the
// control plane keeps stands beside it.
func (c *Config) stateDir() string {
	if c.StateDir != "" {
		return c.StateDir
	}
	return "./var/lib/outrigger/ca"
}

// check refuses what cannot be served.
func (c *Config) check() error {
	if err := c.Cluster.checkRegistries(); err != nil {
		return err
	}
	if c.Shutdown < 0 {
		return fmt.Errorf("--shutdownDuration %s: write a time that is not below 0, such as 10s", c.Shutdown)
	}
	if c.Listen.Secure == "" && c.Listen.Plaintext == "" {
		return errors.New("--secureGRPCAddr and --grpcAddr are both empty: no proxy could connect")
	}
	if c.Listen.HTTP == "" {
		return errors.New("--httpAddr is empty: /ready needs an address")
	}
	return nil
}
