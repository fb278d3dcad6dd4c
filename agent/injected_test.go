// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package agent

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/outrigger-mesh/outrigger/agent/environ"
	"github.com/outrigger-mesh/outrigger/bootstrap/node"
)

// started is the result of resolving flags and an environment.
type started struct {
	cfg      *settings
	env      environ.Values
	warnings []string
}

// start resolves flags and an environment like the program does, with the defaults of the command
// line. It reads files from a map.
func start(t *testing.T, c Config, variables []string, files map[string]string) started {
	t.Helper()
	var s started
	if c.Flags.MeshConfig = "./etc/istio/config/mesh"; c.Flags.ServiceCluster == "" {
		c.Flags.ServiceCluster = "istio-proxy"
	}
	env, warnings := environ.Read(variables)
	c.Environ = env
	cfg, more, err := resolve(t.Context(), sources{
		Config: c,
		read: func(path string) ([]byte, error) {
			if text, ok := files[filepath.Clean(path)]; ok {
				return []byte(text), nil
			}
			return nil, &os.PathError{Op: "open", Path: path, Err: os.ErrNotExist}
		},
		interfaces: func() []networkInterface {
			return []networkInterface{{name: "eth0", ips: []string{"10.0.0.7", "fd00::7"}}}
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	s.cfg, s.env, s.warnings = cfg, env, slices.Concat(warnings, more)
	return s
}

// expect checks the warnings. Each of them must contain the given text.
func (s started) expect(t *testing.T, warnings ...string) {
	t.Helper()
	if len(s.warnings) != len(warnings) {
		t.Errorf("%d warnings, want %d: %q", len(s.warnings), len(warnings), s.warnings)
	}
	for i := range min(len(warnings), len(s.warnings)) {
		if !strings.Contains(s.warnings[i], warnings[i]) {
			t.Errorf("warning %q, want one with %q", s.warnings[i], warnings[i])
		}
	}
}

// injected returns the environment that Istio's injector sets in a container.
func injected(more ...string) []string {
	return append([]string{
		"ISTIO_META_ISTIO_PROXY_SHA=abc", "ISTIO_META_ISTIO_VERSION=1.18.0", // of the image
		"KUBERNETES_SERVICE_HOST=10.96.0.1", "KUBERNETES_SERVICE_PORT=443", "HOSTNAME=shop-1", "PATH=/usr/bin", "HOME=/home/istio-proxy", // of the cluster
		"JWT_POLICY=third-party-jwt", "PILOT_CERT_PROVIDER=istiod", "CA_ADDR=istiod.istio-system.svc:15012",
		"POD_NAME=shop-1", "POD_NAMESPACE=ns", "INSTANCE_IP=10.0.0.7", "SERVICE_ACCOUNT=sa", "HOST_IP=192.168.0.1", "ISTIO_CPU_LIMIT=2",
		"PROXY_CONFIG={\"terminationDrainDuration\":\"7s\"}\n",
		"ISTIO_META_POD_PORTS=[\n    {\"name\":\"http\",\"containerPort\":8080,\"protocol\":\"TCP\"}\n    ,{\"containerPort\":9090}\n]", "ISTIO_META_APP_CONTAINERS=app", "ISTIO_META_CLUSTER_ID=Kubernetes",
		"ISTIO_META_NODE_NAME=node-1", "ISTIO_META_INTERCEPTION_MODE=REDIRECT", "ISTIO_META_WORKLOAD_NAME=shop",
		"ISTIO_META_OWNER=kubernetes://apis/apps/v1/namespaces/ns/deployments/shop", "ISTIO_META_MESH_ID=cluster.local", "TRUST_DOMAIN=cluster.local",
	}, more...)
}

// podFiles returns the files in the volumes of the pod.
func podFiles() map[string]string {
	return map[string]string{
		filepath.Clean(meshRootFile): "roots",
		"etc/istio/pod/labels":       "app=\"shop\"\n",
		"etc/istio/pod/annotations":  "prometheus.io/scrape=\"true\"\n",
	}
}

// injectedFlags returns the flags that the injector sets.
func injectedFlags() Flags {
	return Flags{Domain: "ns.svc.cluster.local", ProxyLogLevel: "warning", ComponentLogLevel: "misc:error"}
}

func TestInjectedSidecar(t *testing.T) {
	t.Parallel()
	s := start(t, Config{Role: node.Sidecar, Flags: injectedFlags(), JSONLog: true}, injected(
		`ISTIO_KUBE_APP_PROBERS={"/app-health/app/readyz":{"httpGet":{"path":"/ready","port":8080,"scheme":"HTTP"},"timeoutSeconds":1}}`,
		`ISTIO_PROMETHEUS_ANNOTATIONS={"scrape":"true","path":"/metrics","port":"8080"}`, "ISTIO_META_NETWORK=net", "ISTIO_META_DNS_CAPTURE=false",
	), podFiles())
	s.expect(t)
	cfg, m := s.cfg, s.cfg.metadata
	want := upstream{address: "istiod.istio-system.svc:15012", serverName: "istiod.istio-system.svc", roots: meshRootFile}
	if cfg.xds != want || cfg.ca != want {
		t.Errorf("control plane %+v, authority %+v", cfg.xds, cfg.ca)
	}
	got := map[string]string{
		"node": cfg.node.String(), "identity": cfg.identity.String(), "cluster": string(m.ClusterID), "mesh": m.MeshID, "network": string(m.Network),
		"workload": m.WorkloadName, "owner": m.Owner, "interception": m.InterceptionMode, "version": m.IstioVersion, "node name": m.NodeName,
		"app": m.Labels["app"], "drain": cfg.drain().Duration.String(), "local": cfg.local,
		"bootstrap": cfg.bootstrapFile, "ips": strings.Join(m.InstanceIPs, ","), "kubernetes": s.env.Workload.KubernetesHost,
	}
	if diff := cmp.Diff(map[string]string{
		"node": "sidecar~10.0.0.7~shop-1.ns~ns.svc.cluster.local", "identity": "spiffe://cluster.local/ns/ns/sa/sa", "cluster": "Kubernetes", "mesh": "cluster.local",
		"network": "net", "workload": "shop", "owner": "kubernetes://apis/apps/v1/namespaces/ns/deployments/shop", "interception": "REDIRECT", "version": "1.18.0",
		"node name": "node-1", "app": "shop", "drain": "7s", "local": "127.0.0.1", "bootstrap": "etc/istio/proxy/envoy-rev.json", "ips": "10.0.0.7,fd00::7",
		"kubernetes": "10.96.0.1",
	}, got); diff != "" {
		t.Error(diff)
	}
	for _, part := range []string{"--concurrency 2", "--component-log-level misc:error", "-l warning", "--log-format"} {
		if args := strings.Join(cfg.envoyArgs, " "); !strings.Contains(args, part) {
			t.Errorf("arguments of Envoy: %s, want %s", args, part)
		}
	}
	if len(m.PodPorts) != 2 || m.PodPorts[0].ContainerPort != 8080 {
		t.Errorf("ports %+v", m.PodPorts)
	}
	if len(cfg.probers) != 1 || cfg.appScrape == nil || s.env.Envoy.Disabled {
		t.Errorf("probers %v, scrape %v", cfg.probers, cfg.appScrape)
	}
}

func TestInjectedRouter(t *testing.T) {
	t.Parallel()
	s := start(t, Config{Role: node.Router, Flags: injectedFlags()}, injected(
		"ISTIO_META_POD_PORTS=[\n]", "ISTIO_META_APP_CONTAINERS=", "ISTIO_META_UNPRIVILEGED_POD=true",
		// The injector sets entries of proxyMetadata as environment variables as well.
		`PROXY_CONFIG={"proxyMetadata":{"ISTIO_META_IDLE_TIMEOUT":"10s","EXIT_ON_ZERO_ACTIVE_CONNECTIONS":"true"}}`, "ISTIO_META_IDLE_TIMEOUT=10s", "EXIT_ON_ZERO_ACTIVE_CONNECTIONS=true",
		// A router never merges metrics of an application, so this annotation has no effect.
		`ISTIO_PROMETHEUS_ANNOTATIONS={"scrape":"true","port":"15020"}`,
	), podFiles())
	s.expect(t)
	m, drain := s.cfg.metadata, s.cfg.drain()
	if s.cfg.node.String() != "router~10.0.0.7~shop-1.ns~ns.svc.cluster.local" || m.UnprivilegedPod != "true" || m.IdleTimeout != "10s" || len(m.PodPorts) != 0 {
		t.Errorf("node %s, metadata %+v", s.cfg.node, m)
	}
	if drain.InboundOnly || !drain.ExitOnZero || drain.Duration.String() != "5s" || drain.MinDuration.String() != "5s" || s.cfg.appScrape != nil {
		t.Errorf("drain %+v, scrape %v", drain, s.cfg.appScrape)
	}
}

// TestInjectedGRPCAgent checks the agent next to a proxyless gRPC application.
func TestInjectedGRPCAgent(t *testing.T) {
	t.Parallel()
	s := start(t, Config{Role: node.Sidecar, Flags: injectedFlags()}, injected(
		"ISTIO_META_GENERATOR=grpc", "OUTPUT_CERTS=/var/lib/istio/data", "ISTIO_META_DNS_CAPTURE=false", "DISABLE_ENVOY=true", "ISTIO_META_INTERCEPTION_MODE=",
	), podFiles())
	s.expect(t)
	if !s.env.Envoy.Disabled || s.env.Identity.OutputDir != "/var/lib/istio/data" || s.env.GRPCBootstrap != environ.DefaultGRPCBootstrap || s.cfg.metadata.Generator != "grpc" {
		t.Errorf("environment %+v, generator %q", s.env, s.cfg.metadata.Generator)
	}
	if s.cfg.xds.roots != meshRootFile || s.cfg.identity.String() != "spiffe://cluster.local/ns/ns/sa/sa" {
		t.Errorf("control plane %+v, identity %s", s.cfg.xds, s.cfg.identity)
	}
}

// machine returns the environment that istio-start.sh sets for the agent: cluster.env as istioctl
// generates it, sidecar.env as packaged, and the variables of the script. The shell exports all of
// them.
func machine(more ...string) []string {
	return append([]string{
		"CANONICAL_REVISION=latest", "CANONICAL_SERVICE=shop", "ISTIO_INBOUND_PORTS=*", "ISTIO_LOCAL_EXCLUDE_PORTS=22,15090,15021,15020",
		`ISTIO_METAJSON_LABELS={"app":"shop","service.istio.io/canonical-name":"shop","service.istio.io/canonical-revision":"latest"}`,
		"ISTIO_META_AUTO_REGISTER_GROUP=shop", "ISTIO_META_CLUSTER_ID=Kubernetes", "ISTIO_META_MESH_ID=", "ISTIO_META_NETWORK=",
		"ISTIO_META_WORKLOAD_NAME=shop", "ISTIO_NAMESPACE=ns", "ISTIO_SERVICE=shop.ns", "ISTIO_SERVICE_CIDR=*", "POD_NAMESPACE=ns", "SERVICE_ACCOUNT=sa", "TRUST_DOMAIN=cluster.local",
		"ISTIO_META_ISTIO_VERSION=1.18.0", "INSTANCE_IP=10.0.0.7", "POD_NAME=host", "PROV_CERT=./etc/certs", "OUTPUT_CERTS=./etc/certs",
		"CA_ADDR=istiod.istio-system.svc:15012",
		"PROXY_CONFIG=\nserviceCluster: shop.ns\ncontrolPlaneAuthPolicy: MUTUAL_TLS\ndiscoveryAddress: istiod.istio-system.svc:15012\n",
		"PATH=/usr/bin", "HOME=/var/lib/istio", "USER=istio-proxy", "SHLVL=1",
	}, more...)
}

// machineFiles returns the files that were copied to the machine: the root certificate and
// mesh.yaml of istioctl.
func machineFiles() map[string]string {
	return map[string]string{
		filepath.Clean(oldRootFile): "roots",
		"etc/istio/config/mesh": "defaultConfig:\n  discoveryAddress: istiod.istio-system.svc:15012\n  proxyMetadata:\n    CANONICAL_SERVICE: shop\n" +
			"    ISTIO_META_CLUSTER_ID: Kubernetes\n    ISTIO_META_MESH_ID: ''\n    ISTIO_METAJSON_LABELS: '{\"app\":\"shop\"}'\n    POD_NAMESPACE: ns\n    SERVICE_ACCOUNT: sa\n",
	}
}

func TestMachine(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		flags    Flags // from $ISTIO_AGENT_FLAGS
		environ  []string
		warnings []string
		check    func(t *testing.T, s started)
	}{
		"as packaged": {},
		"with flags": {
			flags: Flags{ProxyLogLevel: "debug"},
			check: func(t *testing.T, s started) {
				if args := strings.Join(s.cfg.envoyArgs, " "); !strings.Contains(args, "-l debug") {
					t.Errorf("arguments of Envoy: %s", args)
				}
			},
		},
		"with a service cluster": {flags: Flags{ServiceCluster: "shop.ns"}},
		"with what sidecar.env offers": {
			environ: []string{
				"ENVOY_PORT=15001", "ENVOY_USER=istio-proxy", "ISTIO_PILOT_PORT=15012", "ISTIO_CP_AUTH=MUTUAL_TLS", "ISTIO_LOG_DIR=/var/log/istio", "ISTIO_CUSTOM_IP_TABLES=true",
				"ISTIO_INBOUND_INTERCEPTION_MODE=REDIRECT", "ISTIO_INBOUND_TPROXY_MARK=1337", "ISTIO_SVC_IP=10.0.0.7", "ISTIO_BIN_BASE=/usr/local/bin", "ISTIO_CFG=/var/lib/istio",
			},
		},
		"another user and DNS capture": {
			environ:  []string{"ENVOY_USER=me", "XDS_AUTH_PROVIDER=gcp", "ISTIO_META_DNS_CAPTURE=true"},
			warnings: []string{"XDS_AUTH_PROVIDER is set but has no effect"},
			check: func(t *testing.T, s started) {
				if !bool(s.cfg.metadata.DNSCapture) {
					t.Error("the metadata has no DNS_CAPTURE")
				}
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := start(t, Config{Role: node.Sidecar, Flags: tc.flags}, machine(tc.environ...), machineFiles())
			s.expect(t, tc.warnings...)
			cfg, m := s.cfg, s.cfg.metadata
			// The root certificate in ./etc/certs is also the one next to the client certificate.
			xds := upstream{address: "istiod.istio-system.svc:15012", serverName: "istiod.istio-system.svc", roots: oldRootFile, chain: "etc/certs/cert-chain.pem", key: "etc/certs/key.pem", ownFirst: true}
			ca := xds
			ca.roots = "etc/certs/root-cert.pem"
			if cfg.xds != xds || cfg.ca != ca {
				t.Errorf("control plane %+v, authority %+v", cfg.xds, cfg.ca)
			}
			if s.env.Identity.OutputDir != "./etc/certs" || cfg.identity.String() != "spiffe://cluster.local/ns/ns/sa/sa" {
				t.Errorf("OUTPUT_CERTS %s, identity %s", s.env.Identity.OutputDir, cfg.identity)
			}
			if cfg.node.String() != "sidecar~10.0.0.7~host.ns~ns.svc.cluster.local" || cfg.proxyConfig.GetServiceCluster() != "shop.ns" {
				t.Errorf("node %s, cluster %s", cfg.node, cfg.proxyConfig.GetServiceCluster())
			}
			if m.AutoRegisterGroup != "shop" || m.ClusterID != "Kubernetes" || m.MeshID != "" || m.WorkloadName != "shop" || m.Labels["service.istio.io/canonical-name"] != "shop" {
				t.Errorf("metadata %+v", m)
			}
			if tc.check != nil {
				tc.check(t, s)
			}
		})
	}
}
