// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package environ

import (
	"net/netip"
	"time"

	"github.com/outrigger-mesh/outrigger/internal/sdnotify"
	"github.com/outrigger-mesh/outrigger/internal/tlspolicy"
)

// Values are the settings that the environment makes. Each one is a row of the
// table, which documents it.
type Values struct {
	Workload Workload
	Cloud    Cloud
	Envoy    Envoy
	Upstream Upstream
	Identity Identity
	LastGood LastGood
	Probe    Probe
	Metrics  Metrics
	DNS      DNS
	Wasm     Wasm
	Debug    Debug
	Manager  sdnotify.Manager // that started the agent

	// BindAddress is the address of all ports of agent and Envoy; empty: loopback
	// for the admin port, all addresses for the others.
	BindAddress string
	// GRPCBootstrap is the file of the bootstrap of applications with gRPC of
	// their own; empty: none is written.
	GRPCBootstrap string
	// GoTuned is true when GOGC, GOMAXPROCS or GOMEMLIMIT is set.
	GoTuned bool
	// Metadata holds the variables ISTIO_META_* and ISTIO_METAJSON_*.
	Metadata map[string]string
	// Shown are the values in force that are not empty, by name, for display:
	// Hidden takes the place of those that may hold a secret.
	Shown map[string]string
	// RecordHeaders are the headers of requests that are recorded.
	RecordHeaders []string
	// RecordClaims are the claims of tokens that are recorded.
	RecordClaims []string
	// RequireInterception ends the agent if connections are not redirected to Envoy.
	RequireInterception bool
	// Compliance restricts TLS of agent and Envoy.
	Compliance tlspolicy.Policy
	// AllowUnsafeEnvoy allows an Envoy with known bypasses of authorization.
	AllowUnsafeEnvoy bool
	// Unserved are the variables that ask for something that is not supported.
	Unserved []string
}

// Workload is who the application is, and where it runs.
type Workload struct {
	Name, Namespace             string
	InstanceIP, HostIP          string
	ServiceAccount, TrustDomain string
	KubernetesHost              string // set by Kubernetes in each of its pods
}

// Cloud is where the machine runs.
type Cloud struct {
	Platform                       string // aws, azure, gcp, none, or empty to find out
	GCPMetadata, GCPQuotaProject   string
	GKEClusterURL, GCEMetadataHost string
}

// Envoy is how Envoy is started and stopped.
type Envoy struct {
	Disabled                   bool
	ProxyConfig                string // YAML or JSON
	Template, Override         string // files
	StatusPort, PrometheusPort int
	CPULimit                   int // worker threads; 0: one for each CPU
	DeltaXDS, DualStack        bool
	ExitOnZero                 bool
	SkipDeprecatedLogs         bool
	AskBootstrap               bool // the control plane may have patches of the bootstrap
	MinDrain                   time.Duration
}

// Upstream is how control plane and certificate authority are reached.
type Upstream struct {
	XDSRoot, XDSName      string
	CAAddress, CARoot     string
	CertProvider          string
	JWTPolicy, ProvCert   string
	TrustBundle           bool
	KeepaliveInterval     time.Duration
	KeepaliveTimeout      time.Duration
	XDSHeaders, CAHeaders map[string]string
}

// Identity is which certificate the workload asks for, and where it is written.
type Identity struct {
	TTL                 time.Duration
	GraceRatio          float64 // share of the certificate's life
	KeyAlgorithm, Curve string
	RSAKeySize          int
	OutputDir           string
	SocketFile          string // name
	FileMounted         bool
	FileDebounce        time.Duration
}

// LastGood is what is kept for a start without a control plane.
type LastGood struct {
	MaxAge            time.Duration // 0: nothing is kept
	Dir               string
	Identity, Secrets bool
	KeyFD             int // inherited file with the key of the identity; 0: none
}

// Probe is how application probes are made, and who may run hooks.
type Probe struct {
	AppProbers       string // JSON
	LegacyLocalhost  bool
	HTTP2, KeepAlive bool
	HookSources      []netip.Prefix
	HooksForAll      bool
}

// Metrics is who may read metrics, where, and what is in them.
type Metrics struct {
	Annotations                  string // JSON
	SecurePort, SecureMergedPort int    // 0: none
	LocalOnly, MergeEnvoy        bool
}

// DNS is how the DNS proxy works. ISTIO_META_DNS_CAPTURE, which is metadata of
// the node, says whether there is one.
type DNS struct {
	Address  string
	Parallel bool
	Timeout  time.Duration
}

// Wasm is the cache of Wasm modules.
type Wasm struct {
	Convert                          bool
	InsecureRegistries, AllowedHosts []string
	Expiry, PurgeInterval            time.Duration
	HTTPTimeout                      time.Duration
	HTTPAttempts                     int
	FileDir, DockerConfigDir         string
	CacheBytes                       int
}

// Debug is the debug port.
type Debug struct {
	Enabled bool
	Port    int
}
