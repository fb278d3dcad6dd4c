// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package main

import (
	"strings"
	"testing"
)

func badCommandLines() []badInput {
	proxy := func(args ...string) []string { return append([]string{"proxy", "sidecar"}, args...) }
	return []badInput{
		{name: "role", args: []string{"proxy", "gateway"}, want: []string{`role "gateway"`, "use sidecar, router or waypoint"}},
		{name: "role ztunnel", args: []string{"proxy", "ztunnel"}, want: []string{`role "ztunnel"`, "use sidecar, router or waypoint"}},
		{name: "command", args: []string{"istio-routes"}, want: []string{"istio-routes"}},
		{name: "interception", args: []string{"istio-iptables", "--dry-run", "-p", "x"}, want: []string{`--envoy-port is "x"`, "must be a port from 1 to 65535"}},
		{name: "interception by environment", args: []string{"istio-iptables", "--dry-run"}, env: []string{"REDIRECT_DNS=maybe"}, want: []string{"REDIRECT_DNS", `"maybe"`}},
		{name: "envoy-restart", args: proxy("--envoy-restart", "often"), want: []string{"--envoy-restart", `"often"`, "such as 3/10m, or off"}},
		{name: "max-drain", args: proxy("--max-drain", "0s"), want: []string{"--max-drain is 0s", "must be longer than 0"}},
		{name: "max-drain no duration", args: proxy("--max-drain", "long"), want: []string{"--max-drain", `"long"`, "invalid duration"}},
		{name: "concurrency", args: proxy("--concurrency", "two"), want: []string{"--concurrency", `"two"`, "invalid syntax"}},
		{name: "concurrency negative", args: proxy("--concurrency", "-2"), want: []string{"concurrency is -2", "must not be negative"}},
		{name: "stsPort", args: proxy("--stsPort", "15463"), want: []string{"--stsPort is 15463"}},
		{name: "templateFile", args: proxy("--templateFile", "/t"), want: []string{"--templateFile", "/t"}},
		{name: "log level", args: proxy("--log_output_level", "xdsproxy:loud"), want: []string{"--log_output_level", "loud", "must be debug, info, warn, error"}},
		{name: "log target", args: proxy("--log_target", "/proc/no/log"), want: []string{"--log_target", "/proc/no/log", "file"}},
		{name: "flag without its value", args: proxy("--meshConfig"), want: []string{"--meshConfig", "needs"}},
		{name: "wait url", args: []string{"wait", "--url", "localhost:15021"}, want: []string{"--url", `"localhost:15021"`, "must be a URL"}},
		{name: "domain", args: proxy("--domain", "a~b"), want: []string{"--domain", "a~b"}},
	}
}

func badProxyConfigs() []badInput {
	const source = "PROXY_CONFIG"
	return []badInput{
		// The text itself is not shown, because proxyMetadata may contain secrets.
		{name: "PROXY_CONFIG no YAML", env: []string{"PROXY_CONFIG=["}, want: []string{source, "yaml: line 1: did not find expected node content"}},
		{name: "PROXY_CONFIG no mapping", env: []string{"PROXY_CONFIG=sidecar"}, want: []string{source, "must be a mapping of fields"}},
		{name: "PROXY_CONFIG twice", env: []string{"PROXY_CONFIG={statusPort: 1, statusPort: 2}"}, want: []string{source, `yaml: unmarshal errors: line 1: mapping key "statusPort" already defined`}},
		{name: "proxyMetadata without quotes", config: `,"proxyMetadata":{"ISTIO_META_DNS_CAPTURE":true}`, want: []string{source, "proxyMetadata", "ISTIO_META_DNS_CAPTURE", "write it in quotes"}},
		{name: "PROXY_CONFIG type", config: `,"statusPort":"x"`, want: []string{source, "statusPort", `"x"`}},
		{name: "discoveryAddress without port", config: `,"discoveryAddress":"istiod"`, want: []string{`discoveryAddress is "istiod"`, "must be host:port"}},
		{name: "discoveryAddress port", config: `,"discoveryAddress":"istiod:http"`, want: []string{`discoveryAddress is "istiod:http"`, "1 to 65535"}},
		{name: "statusPort", config: `,"statusPort":65536`, want: []string{"statusPort is 65536", "65535"}},
		{name: "proxyAdminPort", config: `,"proxyAdminPort":0`, want: []string{"proxyAdminPort is 0", "1 to 65535"}},
		{name: "drainDuration", config: `,"drainDuration":"0.5s"`, want: []string{"drainDuration is 500ms", "must be"}},
		{name: "drainDuration no duration", config: `,"drainDuration":"5"`, want: []string{"drainDuration", `"5"`}},
		{name: "concurrency in ProxyConfig", config: `,"concurrency":-1`, want: []string{"concurrency is -1", "must not be negative"}},
		{name: "zipkin", config: `,"tracing":{"zipkin":{"address":"zipkin"}}`, want: []string{"tracing.zipkin.address", `"zipkin"`, "must be host:port"}},
		{name: "zipkin port", config: `,"tracing":{"zipkin":{"address":"zipkin:0"}}`, want: []string{"tracing.zipkin.address", `"zipkin:0"`, "1 to 65535"}},
		{name: "statsd", config: `,"statsdUdpAddress":"statsd"`, want: []string{"statsdUdpAddress", `"statsd"`, "must be host:port"}},
		{name: "metrics service", config: `,"envoyMetricsService":{"address":"m"}`, want: []string{"envoyMetricsService.address", `"m"`, "must be host:port"}},
		{name: "access log service", config: `,"envoyAccessLogService":{"address":"a:b"}`, want: []string{"envoyAccessLogService.address", `"a:b"`, "1 to 65535"}},
		{name: "CA of the metrics service", config: `,"envoyMetricsService":{"address":"m:1","tlsSettings":{"mode":"SIMPLE","caCertificates":"none.pem"}}`, want: []string{"envoyMetricsService.tlsSettings.caCertificates", `"none.pem"`, "must be a file"}},
		{name: "HOST_IP", config: `,"statsdUdpAddress":"$(HOST_IP):8125"`, env: []string{"HOST_IP=here"}, want: []string{"HOST_IP", `"here"`, "must be the IP address of the node"}},
		{name: "customConfigFile", config: `,"customConfigFile":"none.yaml"`, want: []string{"customConfigFile", `"none.yaml"`, "must be a bootstrap of Envoy"}},
		{name: "customConfigFile a directory", config: `,"customConfigFile":"var"`, want: []string{"customConfigFile", `"var"`, "must be a bootstrap of Envoy"}},
		{name: "runtimeValues", config: `,"runtimeValues":{"overload.global_downstream_max_connections":"many"}`, want: []string{"runtimeValues", "overload.global_downstream_max_connections", `"many"`, "must be a number"}},
		{name: "discoveryAddress host", config: `,"discoveryAddress":"istio d:15012"`, want: []string{`discoveryAddress is "istio d:15012"`}},
	}
}

func badEnvironments() []badInput {
	return []badInput{
		{name: "INSTANCE_IP", env: []string{"INSTANCE_IP=me"}, want: []string{`INSTANCE_IP is "me"`, "must be an IP address"}},
		{name: "bind address", env: []string{"OUTRIGGER_BIND_ADDRESS=localhost"}, want: []string{`OUTRIGGER_BIND_ADDRESS is "localhost"`, "must be an IP address"}},
		{name: "POD_NAMESPACE", env: []string{"POD_NAMESPACE="}, want: []string{"POD_NAMESPACE is not set", "must be the namespace of the workload"}},
		{name: "POD_NAMESPACE no name", env: []string{"POD_NAMESPACE=a b"}, want: []string{"POD_NAMESPACE", "a b"}},
		{name: "POD_NAME", env: []string{"POD_NAME=a~b"}, want: []string{"POD_NAME", `"a~b"`, "without ~"}},
		{name: "POD_NAMESPACE parts", env: []string{"POD_NAMESPACE=a~b"}, want: []string{"POD_NAMESPACE", `"a~b"`, "without ~"}},
		{name: "SERVICE_ACCOUNT", env: []string{"SERVICE_ACCOUNT="}, want: []string{"SERVICE_ACCOUNT"}},
		{name: "TRUST_DOMAIN", env: []string{"TRUST_DOMAIN=a/b"}, want: []string{"TRUST_DOMAIN", `"a/b"`}},
		{name: "CA_ADDR", env: []string{"CA_ADDR=ca"}, want: []string{`CA_ADDR is "ca"`, "must be host:port"}},
		{name: "PILOT_CERT_PROVIDER", env: []string{"PILOT_CERT_PROVIDER=none"}, want: []string{`PILOT_CERT_PROVIDER is none`, "name the root certificates with XDS_ROOT_CA"}},
		{name: "key algorithm", env: []string{"ECC_SIGNATURE_ALGORITHM=ED25519"}, want: []string{`ECC_SIGNATURE_ALGORITHM is "ED25519"`, "must be ECDSA or RSA"}},
		{name: "key size", env: []string{"WORKLOAD_RSA_KEY_SIZE=1024"}, want: []string{"WORKLOAD_RSA_KEY_SIZE is 1024", "must be 2048, 3072 or 4096"}},
		{name: "metadata DNS_CAPTURE", env: []string{"ISTIO_META_DNS_CAPTURE=yes"}, want: []string{"DNS_CAPTURE", `"yes"`, "write true or false", "ISTIO_META_"}},
		{name: "metadata POD_PORTS", env: []string{"ISTIO_META_POD_PORTS=8080"}, want: []string{"POD_PORTS", "must be a JSON array of {name, containerPort, protocol}", "ISTIO_META_"}},
		{name: "app probers path", env: []string{`ISTIO_KUBE_APP_PROBERS={"/x":{"httpGet":{"port":80}}}`}, want: []string{"ISTIO_KUBE_APP_PROBERS", `"/x"`, "use /app-health/"}},
		{name: "app probers port", env: []string{`ISTIO_KUBE_APP_PROBERS={"/app-health/shop/readyz":{"httpGet":{"port":"http"}}}`}, want: []string{"ISTIO_KUBE_APP_PROBERS", "/app-health/shop/readyz", `"http"`, "use a number"}},
		{name: "prometheus annotations", env: []string{`ISTIO_PROMETHEUS_ANNOTATIONS={"port":8080}`}, want: []string{"ISTIO_PROMETHEUS_ANNOTATIONS", "must be an object of strings"}},
		{name: "prometheus port", env: []string{`ISTIO_PROMETHEUS_ANNOTATIONS={"port":"http"}`}, want: []string{"ISTIO_PROMETHEUS_ANNOTATIONS", `"http"`, "use a number"}},
		{name: "gRPC bootstrap", env: []string{"GRPC_XDS_BOOTSTRAP=/proc/no/grpc.json"}, want: []string{"GRPC_XDS_BOOTSTRAP", "/proc/no", "set it to a file that can be written"}},
		{name: "gRPC bootstrap a directory", env: []string{"GRPC_XDS_BOOTSTRAP={dir}/var"}, want: []string{"GRPC_XDS_BOOTSTRAP", "{dir}/var", "set it to a file that can be written"}},
		{name: "SECRET_TTL", env: []string{"SECRET_TTL=1ms"}, want: []string{"SECRET_TTL", "at least 1s"}},
		{name: "curve", env: []string{"ECC_CURVE=P521"}, want: []string{`ECC_CURVE is "P521"`, "P256 or P384"}},
		{name: "app probers no JSON", env: []string{"ISTIO_KUBE_APP_PROBERS={"}, want: []string{"ISTIO_KUBE_APP_PROBERS", "must be"}},
		{name: "CA_ADDR port", env: []string{"CA_ADDR=ca:https"}, want: []string{`CA_ADDR is "ca:https"`, "65535"}},
		{name: "CA_ADDR host", env: []string{"CA_ADDR=:15012"}, want: []string{`CA_ADDR is ":15012"`, "must be host:port"}},
		{name: "CA_ADDR plaintext without a host", env: []string{"CA_ADDR=:15010"}, want: []string{`CA_ADDR is ":15010"`, "must be host:port"}},
	}
}

func badFiles() []badInput {
	annotations := func(text string) map[string]string {
		return map[string]string{"etc/istio/pod/annotations": text + "\n"}
	}
	mesh := func(text string) map[string]string { return map[string]string{"etc/istio/config/mesh": text} }
	return []badInput{
		{name: "mesh config no YAML", files: mesh("a: ["), want: []string{"--meshConfig", "./etc/istio/config/mesh", "line 1"}},
		{name: "mesh config type", files: mesh("defaultConfig: {statusPort: {}}"), want: []string{"--meshConfig", "./etc/istio/config/mesh", "defaultConfig.statusPort"}},
		{name: "mesh config value", files: mesh("connectTimeout: 0s"), want: []string{"--meshConfig", "./etc/istio/config/mesh", "connectTimeout is 0s", "must be"}},
		{name: "mesh config a directory", files: mesh("-"), prepare: func(t *testing.T, dir, _ string) {
			t.Helper()
			writeTree(t, dir, map[string]string{"etc/istio/config/mesh/": ""})
		}, want: []string{"--meshConfig", "./etc/istio/config/mesh", "is a directory"}},
		{name: "annotation config", files: annotations(`proxy.istio.io/config="statusPort: x"`), want: []string{"proxy.istio.io/config", "statusPort", `"x"`}},
		{name: "annotation status port", files: annotations(`status.sidecar.istio.io/port="http"`), want: []string{"status.sidecar.istio.io/port", `"http"`, "must be a port"}},
		{name: "no root certificates", files: map[string]string{"var/run/secrets/istio/root-cert.pem": "-"}, want: []string{"./var/run/secrets/istio/root-cert.pem", "XDS_ROOT_CA"}},
		{name: "override too long", env: []string{"ISTIO_BOOTSTRAP_OVERRIDE={dir}/override"}, files: map[string]string{"override": strings.Repeat("#", 128<<10)}, want: []string{"ISTIO_BOOTSTRAP_OVERRIDE", "{dir}/override", "131072 bytes", "at most 131071 bytes"}},
		{name: "override no text", env: []string{"ISTIO_BOOTSTRAP_OVERRIDE={dir}/override"}, files: map[string]string{"override": "a\x00b"}, want: []string{"ISTIO_BOOTSTRAP_OVERRIDE", "{dir}/override", "must be text"}},
		{name: "XDS_ROOT_CA", env: []string{"XDS_ROOT_CA=/none.pem"}, want: []string{"XDS_ROOT_CA", "/none.pem"}},
		{name: "XDS_ROOT_CA a directory", env: []string{"XDS_ROOT_CA={dir}/var"}, want: []string{"XDS_ROOT_CA", "{dir}/var"}},
		{name: "PROV_CERT", env: []string{"PROV_CERT={dir}/none"}, want: []string{"PROV_CERT", "{dir}/none"}},
		{name: "mesh config two faults", files: mesh("trustDomain: ''\nrootNamespace: ''"), want: []string{"trustDomain is empty", "rootNamespace is empty"}},
		{name: "annotation discoveryAddress", files: annotations(`sidecar.istio.io/discoveryAddress="istiod"`), want: []string{"sidecar.istio.io/discoveryAddress", `"istiod"`, "must be host:port"}},
		{name: "XDS_ROOT_CA without PEM", env: []string{"XDS_ROOT_CA={dir}/envoy"}, want: []string{"XDS_ROOT_CA", "{dir}/envoy", "PEM"}},
		{name: "root certificates empty", files: map[string]string{"var/run/secrets/istio/root-cert.pem": ""}, want: []string{"./var/run/secrets/istio/root-cert.pem", "PEM", "XDS_ROOT_CA"}},
		{name: "CA_ROOT_CA without PEM", env: []string{"CA_ROOT_CA={dir}/envoy"}, want: []string{"CA_ROOT_CA", "{dir}/envoy", "PEM"}},
	}
}

func badMachines() []badInput {
	// The file is written before Envoy starts, and stays for applications that start in the
	// meantime.
	grpcFile := []string{"etc/istio/proxy/grpc-bootstrap.json ----------"}
	return []badInput{
		{name: "status port busy", prepare: func(t *testing.T, _, address string) { t.Helper(); listen(t, "tcp", address+":15020") }, want: []string{"{address}:15020", "address already in use", "statusPort of ProxyConfig"}},
		{name: "bind address of another host", env: []string{"OUTRIGGER_BIND_ADDRESS=192.0.2.1"}, want: []string{"OUTRIGGER_BIND_ADDRESS", "192.0.2.1"}},
		{name: "XDS socket busy", prepare: func(t *testing.T, dir, _ string) { t.Helper(); listen(t, "unix", dir+"/etc/istio/proxy/XDS") }, want: []string{"etc/istio/proxy/XDS", "another process serves it"}},
		{name: "SDS socket busy", prepare: func(t *testing.T, dir, _ string) {
			t.Helper()
			listen(t, "unix", dir+"/var/run/secrets/workload-spiffe-uds/socket")
		}, want: []string{"var/run/secrets/workload-spiffe-uds/socket", "a process listens on it and does not speak gRPC"}},
		{name: "Envoy too old", files: map[string]string{"envoy": strings.Replace(goodEnvoy, "1.39.3", "1.30.1", 1)}, left: grpcFile, want: []string{"binaryPath", "{dir}/envoy", "is version 1.30.1, but 1.36 or newer is needed"}},
		{name: "configPath below a file", config: `,"configPath":"envoy/proxy"`, want: []string{`configPath is "envoy/proxy"`, "must be a directory that can be written"}},
		{name: "configPath cannot be written", config: `,"configPath":"/proc/outrigger"`, want: []string{`configPath is "/proc/outrigger"`, "must be a directory that can be written"}},
		{name: "configPath read-only", config: `,"configPath":"/proc/self"`, want: []string{`configPath is "/proc/self"`, "/proc/self/XDS"}},
		{name: "configPath too long", config: `,"configPath":"./` + strings.Repeat("long/", 30) + `"`, want: []string{"configPath", "long/long", "the kernel's limit is 107", "use a shorter"}},
		{name: "no Envoy", config: `,"binaryPath":"/none/envoy"`, want: []string{`binaryPath is "/none/envoy"`, "must be an Envoy"}},
		{name: "Envoy a directory", config: `,"binaryPath":"{dir}/var"`, want: []string{"binaryPath", "{dir}/var"}},
		{name: "Envoy not executable", config: `,"binaryPath":"{dir}/etc/istio/pod/labels"`, prepare: func(t *testing.T, dir, _ string) {
			t.Helper()
			chmod(t, dir+"/etc/istio/pod/labels", 0o644)
		}, want: []string{"binaryPath", "{dir}/etc/istio/pod/labels", "permission"}},
		{name: "Envoy no program", config: `,"binaryPath":"{dir}/etc/istio/pod/labels"`, left: grpcFile, want: []string{"binaryPath", "{dir}/etc/istio/pod/labels"}},
		{name: "Envoy too old for its arguments", files: map[string]string{"envoy": strings.NewReplacer("1.39.3", "1.30.1", "exec sleep 60", "exit 1").Replace(goodEnvoy)}, left: grpcFile, want: []string{"binaryPath", "{dir}/envoy", "is version 1.30.1, but 1.36 or newer is needed"}},
	}
}
