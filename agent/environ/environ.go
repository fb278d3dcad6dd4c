// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package environ

import (
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/outrigger-mesh/outrigger/internal/sdnotify"
	"github.com/outrigger-mesh/outrigger/internal/tlspolicy"
)

// kind is the type of a variable's value, as the document names it.
type kind string

// The types of variables.
const (
	kindText     kind = "text"
	kindNumber   kind = "number"
	kindPort     kind = "port"
	kindBool     kind = "bool"
	kindDuration kind = "duration"
	kindAddress  kind = "host:port"
	kindPath     kind = "path"
	kindJSON     kind = "JSON"
	kindYAML     kind = "YAML or JSON"
)

// variable is one row of the table of environment variables, which is also
// the source of docs/reference/env-agent.md.
type variable struct {
	name     string
	kind     kind
	fallback string
	doc      string
	set      func(e *Values, value string) error
}

// variables is the one place that knows the Values.
func variables() []variable {
	return slices.Concat(baseVariables(), featureVariables(), captureVariables())
}

func baseVariables() []variable {
	return []variable{
		{"POD_NAME", kindText, "", "name of the workload: part of the node id (default: the host's name)", text(func(e *Values) *string { return &e.Workload.Name })},
		{"POD_NAMESPACE", kindText, "", "namespace of the workload: part of the node id, of the default domain and of the identity", text(func(e *Values) *string { return &e.Workload.Namespace })},
		{"INSTANCE_IP", kindText, "", "first address of the proxy, and where application probes go (default: the first address of an interface)", text(func(e *Values) *string { return &e.Workload.InstanceIP })},
		{"SERVICE_ACCOUNT", kindText, "", "service account of the workload: part of the identity", text(func(e *Values) *string { return &e.Workload.ServiceAccount })},
		{"TRUST_DOMAIN", kindText, "cluster.local", "trust domain of the workload: part of the identity", text(func(e *Values) *string { return &e.Workload.TrustDomain })},
		{"ISTIO_CPU_LIMIT", kindNumber, "0", "worker threads of Envoy when ProxyConfig has no concurrency; 0 means one for each CPU", number(func(e *Values) *int { return &e.Envoy.CPULimit })},
		{"KUBERNETES_SERVICE_HOST", kindText, "", "set by Kubernetes: certificates are written 0644 instead of 0600", text(func(e *Values) *string { return &e.Workload.KubernetesHost })},
		{"CLOUD_PLATFORM", kindText, "", "where this runs: aws, azure, gcp or none, in any case (default: what the firmware and the variables below say)", oneOf(func(e *Values) *string { return &e.Cloud.Platform }, "aws", "azure", "gcp", "none")},
		{"GCP_METADATA", kindText, "", "project id, project number, cluster and its location with the pipe character between; the metadata server of Google Cloud is then not queried", text(func(e *Values) *string { return &e.Cloud.GCPMetadata })},
		{"GCP_QUOTA_PROJECT", kindText, "", "`gcp_quota_project` of the node's platform metadata", text(func(e *Values) *string { return &e.Cloud.GCPQuotaProject })},
		{"GKE_CLUSTER_URL", kindText, "", "URL of the GKE cluster in the node's platform metadata (default: made of project, location and cluster)", text(func(e *Values) *string { return &e.Cloud.GKEClusterURL })},
		{"GCE_METADATA_HOST", kindText, "", "host or host:port of the metadata server of Google Cloud (default: 169.254.169.254); also means that there is one", text(func(e *Values) *string { return &e.Cloud.GCEMetadataHost })},
		{"PROXY_CONFIG", kindYAML, "", "a ProxyConfig, merged over that of the mesh config file", text(func(e *Values) *string { return &e.Envoy.ProxyConfig })},
		{"ENVOY_STATUS_PORT", kindPort, "15021", "port of Envoy that answers /healthz/ready", port(func(e *Values) *int { return &e.Envoy.StatusPort })},
		{"ENVOY_PROMETHEUS_PORT", kindPort, "15090", "port of Envoy that answers /stats/prometheus", port(func(e *Values) *int { return &e.Envoy.PrometheusPort })},
		{"ISTIO_DELTA_XDS", kindBool, "true", "incremental ADS between Envoy and the control plane; false selects the state of the world", boolean(func(e *Values) *bool { return &e.Envoy.DeltaXDS })},
		{"ENVOY_SKIP_DEPRECATED_LOGS", kindBool, "true", "keep Envoy's warnings of deprecated fields out of the log", boolean(func(e *Values) *bool { return &e.Envoy.SkipDeprecatedLogs })},
		{"COMPLIANCE_POLICY", kindText, "", "restricts TLS of the agent and of Envoy's own ports, as in the control plane: fips-140-2, fips-140-3 or pqc", func(e *Values, s string) error {
			e.Compliance = tlspolicy.Policy(s) // an unknown one ends the agent
			return nil
		}},
		{"EXIT_ON_ZERO_ACTIVE_CONNECTIONS", kindBool, "false", "drain until no connection is open instead of for terminationDrainDuration", boolean(func(e *Values) *bool { return &e.Envoy.ExitOnZero })},
		{"MINIMUM_DRAIN_DURATION", kindDuration, "5s", "shortest drain; only with EXIT_ON_ZERO_ACTIVE_CONNECTIONS", duration(func(e *Values) *time.Duration { return &e.Envoy.MinDrain })},
		{"DISABLE_ENVOY", kindBool, "false", "run without Envoy: the agent keeps certificates and serves xDS to applications with gRPC of their own, until it is stopped", boolean(func(e *Values) *bool { return &e.Envoy.Disabled })},
		{"HOST_IP", kindText, "", "address of the node: replaces the host `$(HOST_IP)` in the addresses of tracers, statsd, metrics and access log service; the kubelet runs lifecycle hooks from there, see OUTRIGGER_HOOK_SOURCES", text(func(e *Values) *string { return &e.Workload.HostIP })},
		{"ISTIO_DUAL_STACK", kindBool, "false", "with addresses of both families, the first one chooses that of the local ports, and Envoy looks up both", boolean(func(e *Values) *bool { return &e.Envoy.DualStack })},
		{"ISTIO_BOOTSTRAP", kindPath, "", "template of the bootstrap, in the language of Istio's; wins over --templateFile and proxyBootstrapTemplatePath. The path of Istio's own template selects the built-in one", text(func(e *Values) *string { return &e.Envoy.Template })},
		{"ISTIO_BOOTSTRAP_OVERRIDE", kindPath, "", "file that Envoy merges over the bootstrap", text(func(e *Values) *string { return &e.Envoy.Override })},
		{"BOOTSTRAP_XDS_AGENT", kindBool, "false", "ask the control plane for the patches of EnvoyFilters to BOOTSTRAP before Envoy starts; without an answer within 10 s, or if Envoy refuses them, it starts without them", boolean(func(e *Values) *bool { return &e.Envoy.AskBootstrap })},
		{NameGRPCBootstrap, kindPath, DefaultGRPCBootstrap, "where the bootstrap of applications with gRPC of their own is written; set but empty: nowhere", text(func(e *Values) *string { return &e.GRPCBootstrap })},
		{"OUTRIGGER_BIND_ADDRESS", kindText, "", "IP address that all ports of agent and Envoy bind to, and that all local targets have (default: loopback for the admin port, all addresses for the others)", text(func(e *Values) *string { return &e.BindAddress })},
		{"XDS_ROOT_CA", kindPath, "", "root certificates to verify the control plane with, or SYSTEM", text(func(e *Values) *string { return &e.Upstream.XDSRoot })},
		{"CA_ADDR", kindAddress, "", "certificate authority; with port 15010 in plaintext and without the token (default: discoveryAddress of ProxyConfig)", text(func(e *Values) *string { return &e.Upstream.CAAddress })},
		{"CA_ROOT_CA", kindPath, "", "root certificates to verify the certificate authority with, or SYSTEM", text(func(e *Values) *string { return &e.Upstream.CARoot })},
		{"PILOT_CERT_PROVIDER", kindText, "istiod", "where root certificates are when no path is given: istiod (`./var/run/secrets/istio/root-cert.pem`), kubernetes (`ca.crt` in `./var/run/secrets/istio/kubernetes`, else of the service account), custom (`./etc/certs/root-cert.pem` for the authority), none (a path must be given)", text(func(e *Values) *string { return &e.Upstream.CertProvider })},
		{"ISTIOD_SAN", kindText, "", "name that the certificate of the control plane must have (default: the host of its address)", text(func(e *Values) *string { return &e.Upstream.XDSName })},
		{"JWT_POLICY", kindText, "third-party-jwt", "which token is sent: third-party-jwt (`./var/run/secrets/tokens/istio-token`), first-party-jwt (that of Kubernetes), anything else for none", text(func(e *Values) *string { return &e.Upstream.JWTPolicy })},
		{"PROV_CERT", kindPath, "", "directory of key.pem, cert-chain.pem and root-cert.pem that authenticate the agent to control plane and authority", text(func(e *Values) *string { return &e.Upstream.ProvCert })},
		{"OUTPUT_CERTS", kindPath, "", "directory that key.pem, cert-chain.pem and root-cert.pem of the workload are written to", text(func(e *Values) *string { return &e.Identity.OutputDir })},
		{"FILE_MOUNTED_CERTS", kindBool, "false", "serve certificates from files, without a certificate authority", boolean(func(e *Values) *bool { return &e.Identity.FileMounted })},
		{"FILE_DEBOUNCE_DURATION", kindDuration, "100ms", "how long to wait, at first, for the other file while a certificate and its key do not belong together", duration(func(e *Values) *time.Duration { return &e.Identity.FileDebounce })},
		{"WORKLOAD_IDENTITY_SOCKET_FILE", kindText, "socket", "file name of the socket in `./var/run/secrets/workload-spiffe-uds` from which Envoy gets the identity; with another name than the default, the agent starts once another server, such as SPIRE's agent, serves that socket", text(func(e *Values) *string { return &e.Identity.SocketFile })},
		{"CA_PROVIDER", kindText, "Citadel", "protocol of the certificate authority; only Citadel (that of istiod) is served", only("Citadel")},
		{"CREDENTIAL_FETCHER_TYPE", kindText, "JWT", "where the token comes from; only JWT (a file, see JWT_POLICY) is served", only("JWT")},
		{"CREDENTIAL_IDENTITY_PROVIDER", kindText, "GoogleComputeEngine", "issuer of the token, for its exchange at Google; only the default is served", only("GoogleComputeEngine")},
		{"GRPC_KEEPALIVE_INTERVAL", kindDuration, "30s", "idle time after which a gRPC connection is probed", duration(func(e *Values) *time.Duration { return &e.Upstream.KeepaliveInterval })},
		{"GRPC_KEEPALIVE_TIMEOUT", kindDuration, "10s", "how long to wait for the answer to a probe", duration(func(e *Values) *time.Duration { return &e.Upstream.KeepaliveTimeout })},
		{"SECRET_TTL", kindDuration, "24h", "requested lifetime of a certificate", duration(func(e *Values) *time.Duration { return &e.Identity.TTL })},
		{"SECRET_GRACE_PERIOD_RATIO", kindNumber, "0.5", "share of a certificate's lifetime that is left when it is renewed", func(e *Values, s string) error {
			ratio, err := strconv.ParseFloat(s, 64)
			if err != nil || !(ratio > 0 && ratio < 1) {
				return fmt.Errorf("%q is not a share: write a number between 0 and 1", s)
			}
			e.Identity.GraceRatio = ratio
			return nil
		}},
		{"ECC_SIGNATURE_ALGORITHM", kindText, "", "ECDSA or RSA (default: ECDSA, or RSA when only WORKLOAD_RSA_KEY_SIZE is set)", text(func(e *Values) *string { return &e.Identity.KeyAlgorithm })},
		{"ECC_CURVE", kindText, "P256", "P256 or P384", text(func(e *Values) *string { return &e.Identity.Curve })},
		{"WORKLOAD_RSA_KEY_SIZE", kindNumber, "0", "bits of an RSA key: 2048, 3072 or 4096", number(func(e *Values) *int { return &e.Identity.RSAKeySize })},
		{"PKCS8_KEY", kindBool, "false", "accepted, without effect: private keys are always PKCS#8", boolean(func(*Values) *bool { return new(bool) })},
		{"ISTIO_KUBE_APP_PROBERS", kindJSON, "", "the application's probes that the status port answers", text(func(e *Values) *string { return &e.Probe.AppProbers })},
		{"ISTIO_PROMETHEUS_ANNOTATIONS", kindJSON, "", "where the application's metrics are, to be merged with the agent's", text(func(e *Values) *string { return &e.Metrics.Annotations })},
		{"REWRITE_PROBE_LEGACY_LOCALHOST_DESTINATION", kindBool, "false", "send application probes to localhost instead of INSTANCE_IP", boolean(func(e *Values) *bool { return &e.Probe.LegacyLocalhost })},
		{"NOTIFY_SOCKET", kindPath, "", "set by systemd: socket to report readiness, a line of status and the stop to", text(func(e *Values) *string { return &e.Manager.Socket })},
		{"WATCHDOG_USEC", kindNumber, "0", "set by systemd: microseconds after which it kills an agent that does not report; 0: never", func(e *Values, s string) (err error) {
			e.Manager.Watchdog, err = sdnotify.ParseWatchdog(s)
			return err
		}},
		{"GOGC", kindText, "", "Go's garbage collector, see Go's documentation; replaces the agent's own tuning", tuned},
		{"GOMAXPROCS", kindText, "", "Go's processors, see Go's documentation; replaces the agent's own tuning", tuned},
		{"GOMEMLIMIT", kindText, "", "Go's memory limit, see Go's documentation; replaces the agent's own tuning", tuned},
	}
}

// NameGRPCBootstrap is the variable of the file that applications with gRPC of
// their own start with; gRPC's libraries read it in the application's container.
const (
	NameGRPCBootstrap    = "GRPC_XDS_BOOTSTRAP"
	DefaultGRPCBootstrap = "etc/istio/proxy/grpc-bootstrap.json"
)

// The families of variables: everything that begins so.
const (
	prefixMetadata     = "ISTIO_META_"
	prefixMetadataJSON = "ISTIO_METAJSON_"
	prefixHeader       = "XDS_HEADER_"
	prefixCAHeader     = "CA_HEADER_"
)

// Hidden takes the place of a value that may be secret.
const Hidden = "(set)"

// Read reads every variable of the table. A value that cannot be
// read does not keep a workload from starting: the default takes its place, and
// a warning says so.
func Read(environ []string) (e Values, warnings []string) {
	e = Values{Metadata: map[string]string{}, Shown: map[string]string{}}
	e.Upstream.XDSHeaders, e.Upstream.CAHeaders = map[string]string{}, map[string]string{}
	values := map[string]string{}
	for _, entry := range environ {
		name, value, _ := strings.Cut(entry, "=")
		values[name] = value
		switch {
		case strings.HasPrefix(name, prefixMetadata), strings.HasPrefix(name, prefixMetadataJSON):
			e.Metadata[name] = value
		case len(name) > len(prefixHeader) && strings.HasPrefix(name, prefixHeader):
			warnings = append(warnings, putHeader(e.Upstream.XDSHeaders, name, prefixHeader, value)...)
		case len(name) > len(prefixCAHeader) && strings.HasPrefix(name, prefixCAHeader):
			warnings = append(warnings, putHeader(e.Upstream.CAHeaders, name, prefixCAHeader, value)...)
		}
	}
	for _, v := range unservedVariables() {
		switch value := values[v.name]; {
		case value == "" || v.asksForNothing(value):
		case v.instead == "":
			e.Unserved = append(e.Unserved, v.name)
		default:
			warnings = append(warnings, fmt.Sprintf("environment variable %s is set but has no effect: %s", v.name, v.instead))
		}
	}
	for _, v := range variables() {
		value, given := values[v.name]
		if value == "" && !(given && v.name == NameGRPCBootstrap) { // whose empty value means something
			value = v.fallback
		}
		if err := v.set(&e, value); err != nil {
			warnings = append(warnings, fmt.Sprintf("environment variable %s: %s; the default %q is used", v.name, err, v.fallback))
			value = v.fallback
			if err := v.set(&e, value); err != nil {
				warnings = append(warnings, fmt.Sprintf("environment variable %s: the default cannot be read: %s", v.name, err))
			}
		}
		switch {
		case value == "":
		case v.kind == kindJSON, v.kind == kindYAML: // headers of probes, proxyMetadata
			e.Shown[v.name] = Hidden
		default:
			e.Shown[v.name] = value
		}
	}
	return e, warnings
}

// putHeader takes a variable for a header, unless gRPC would refuse each call
// that has it. The value is not shown: it may be a secret.
func putHeader(headers map[string]string, variable, prefix, value string) (warnings []string) {
	name := strings.ToLower(variable[len(prefix):])
	switch {
	case strings.Trim(name, "abcdefghijklmnopqrstuvwxyz0123456789-_.") != "":
		return []string{fmt.Sprintf("environment variable %s is ignored: %q is not the name of a header; it must be of letters, digits, '-', '_' and '.'", variable, name)}
	case !strings.HasSuffix(name, "-bin") && strings.ContainsFunc(value, func(r rune) bool { return r < ' ' || r > '~' }):
		return []string{fmt.Sprintf("environment variable %s is ignored: its value must be of printable ASCII characters", variable)}
	}
	headers[name] = value
	return nil
}

func text(field func(*Values) *string) func(*Values, string) error {
	return func(e *Values, s string) error { *field(e) = s; return nil }
}

// oneOf takes one of some words, written in any case.
func oneOf(field func(*Values) *string, words ...string) func(*Values, string) error {
	return func(e *Values, s string) error {
		word := strings.ToLower(s)
		if s != "" && !slices.Contains(words, word) {
			return fmt.Errorf("%q is not one of %s", s, strings.Join(words, ", "))
		}
		*field(e) = word
		return nil
	}
}

// only takes the one value that is served.
func only(served string) func(*Values, string) error {
	return func(_ *Values, s string) error {
		if s != served {
			return fmt.Errorf("%q is not supported; only %s is", s, served)
		}
		return nil
	}
}

func number(field func(*Values) *int) func(*Values, string) error {
	return func(e *Values, s string) error {
		n, err := strconv.Atoi(s)
		if err != nil || n < 0 {
			return fmt.Errorf("%q is not a number of at least 0", s)
		}
		*field(e) = n
		return nil
	}
}

func port(field func(*Values) *int) func(*Values, string) error {
	return func(e *Values, s string) error {
		n, err := strconv.ParseUint(s, 10, 16)
		if err != nil || n == 0 {
			return fmt.Errorf("%q is not a port from 1 to 65535", s)
		}
		*field(e) = int(n)
		return nil
	}
}

func boolean(field func(*Values) *bool) func(*Values, string) error {
	return func(e *Values, s string) error {
		b, err := strconv.ParseBool(s)
		if err != nil {
			return fmt.Errorf("%q is neither true nor false", s)
		}
		*field(e) = b
		return nil
	}
}

func duration(field func(*Values) *time.Duration) func(*Values, string) error {
	return func(e *Values, s string) error {
		d, err := time.ParseDuration(s)
		if err != nil || d < 0 {
			return fmt.Errorf("%q is not a duration such as 5s or 24h", s)
		}
		*field(e) = d
		return nil
	}
}

func tuned(e *Values, s string) error { e.GoTuned = e.GoTuned || s != ""; return nil }

// WriteDoc writes docs/reference/env-agent.md.
func WriteDoc(w io.Writer) error {
	var b strings.Builder
	b.WriteString("# Environment of outrigger-agent\n\n" +
		"Made from the table in `agent/environ` by `make generate`. A value that cannot be read is reported and the default used.\n\n" +
		"| variable | type | default | meaning |\n|---|---|---|---|\n")
	for _, v := range variables() {
		fallback := ""
		if v.fallback != "" {
			fallback = "`" + v.fallback + "`"
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", v.name, v.kind, fallback, v.doc)
	}
	b.WriteString("| `" + prefixMetadata + "<KEY>` | text | | node metadata `<KEY>`; a key with a type must parse as that type. The same name in proxyMetadata of ProxyConfig loses |\n" +
		"| `" + prefixMetadataJSON + "<ANY>` | JSON | | an object whose members become node metadata; `" + prefixMetadataJSON + "LABELS` becomes the labels beneath those of the pod |\n" +
		"| `" + prefixHeader + "<NAME>` | text | | metadata `<name>` of each ADS stream to the control plane |\n" +
		"| `" + prefixCAHeader + "<NAME>` | text | | metadata `<name>` of each call to the certificate authority |\n")
	_, err := io.WriteString(w, b.String())
	return err
}
