// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package main

import (
	"cmp"
	"fmt"
	"os"
	"slices"
	"strconv"
	"time"

	"github.com/outrigger-mesh/outrigger/controlplane/server"
)

// podToken is the file that exists in a pod with a service account.
const podToken = "/var/run/secrets/kubernetes.io/serviceaccount/token"

// kubernetesVariables are the rows of the table about the cluster.
// maxLinger is longer than load balancers take to stop sending callers.
const maxLinger = time.Hour

func kubernetesVariables() []variable {
	return []variable{
		{"OUTRIGGER_KUBERNETES", server.ClusterAuto, "true uses Kubernetes: the API server reviews tokens, the self-signed root is in the Secret istio-ca-secret, the roots are written into each namespace, services are read from the cluster, and so is the configuration if no other source is configured. false does not use it. auto means true with `--kubeconfig`, and in a pod with a service account unless `--registries \"\"` is given", func(e *environment, s string) error {
			if !slices.Contains([]string{server.ClusterAuto, server.ClusterOn, server.ClusterOff}, s) {
				return fmt.Errorf("%q is invalid: write %s, %s or %s", s, server.ClusterAuto, server.ClusterOn, server.ClusterOff)
			}
			e.Cluster.Use = s
			return nil
		}},
		{"KUBECONFIG", "", "in a pod, or with OUTRIGGER_KUBERNETES=true: kubeconfig of the cluster, if the file exists; otherwise the service account of the pod is used. --kubeconfig overrides it. It does not enable Kubernetes on its own", text(func(e *environment) *string { return &e.Cluster.Kubeconfigs })},
		{"KUBERNETES_SERVICE_HOST", "", "set by Kubernetes in each pod", func(e *environment, s string) error {
			_, err := os.Stat(podToken)
			e.Cluster.InPod = s != "" && err == nil
			return nil
		}},
		{"OUTRIGGER_SHUTDOWN_DELAY", "", "after SIGTERM, how long all ports go on serving while /ready fails, until no caller is sent to this replica; then --shutdownDuration begins (default: 5s in a pod, else 0s; at most 1h). A second signal ends it", func(e *environment, s string) error {
			s = cmp.Or(s, map[bool]string{true: "5s", false: "0s"}[e.Cluster.InPod])
			err := duration(func(e *environment) *time.Duration { return &e.Linger })(e, s)
			if err == nil && e.Linger > maxLinger {
				err = fmt.Errorf("%q is longer than %s: write a time shorter than terminationGracePeriodSeconds of the pod", s, maxLinger)
			}
			return err
		}},
		{"CLUSTER_ID", "Kubernetes", "name of the cluster, which agents send with a token; --clusterID overrides it", text(func(e *environment) *string { return &e.Cluster.ID })},
		{"POD_NAME", "", "name of this replica in leader elections (default: host name and process id)", func(e *environment, s string) error {
			e.Registration.Instance = s
			if e.PodName = s; s != "" {
				return nil
			}
			host, err := os.Hostname()
			e.PodName = fmt.Sprintf("%s-%d", host, os.Getpid())
			return err
		}},
		{"ENABLE_LEADER_ELECTION", "true", "false makes every replica write the roots into the namespaces", boolean(func(e *environment) *bool { return &e.Cluster.Election })},
		{"VALIDATION_WEBHOOK_CONFIG_NAME", "istio-istio-system", "empty leaves the ValidatingWebhookConfigurations of the cluster alone; any other value updates those with the label istio.io/rev of this revision, regardless of their names", func(e *environment, s string) error {
			e.Cluster.WriteWebhooks = s != ""
			return nil
		}},
		{"INJECTION_WEBHOOK_CONFIG_NAME", "istio-sidecar-injector", "empty leaves the MutatingWebhookConfigurations of the cluster alone; any other value sets the roots in those with the label istio.io/rev of this revision, regardless of their names", func(e *environment, s string) error {
			e.Cluster.WriteInjectors = s != ""
			return nil
		}},
		{"INJECT_ENABLED", "true", "with Kubernetes: adds proxies to pods, at /inject of the webhooks' port", boolean(func(e *environment) *bool { return &e.Inject.On })},
		{"ENABLE_NATIVE_SIDECARS", "true", "runs proxies as native sidecars, which nodes support since Kubernetes 1.29; false runs them beside the application. The annotation sidecar.istio.io/nativeSidecar overrides it for a pod", func(e *environment, s string) error {
			if s == "auto" {
				s = "true"
			}
			return boolean(func(e *environment) *bool { return &e.Inject.Native })(e, s)
		}},
		{"PLATFORM", "", "openshift makes proxies run as the last user and group of the ranges that OpenShift reserves for their namespace, instead of 1337; gcp changes nothing", text(func(e *environment) *string { return &e.Inject.Platform })},
		{"OUTRIGGER_ROOTS_CONFIGMAP", "true", "false does not write the ConfigMaps istio-ca-root-cert: for a second mesh in a cluster, or if another program writes them", boolean(func(e *environment) *bool { return &e.Cluster.WriteRoots })},
	}
}

// remoteVariables are the rows of the table about other clusters.
func remoteVariables() []variable {
	return []variable{
		{"OUTRIGGER_REMOTE_CLUSTERS", "true", "with Kubernetes: also reads services from remote clusters, whose kubeconfigs are in Secrets of the control plane's namespace with the label istio/multiCluster=true, under the name of the cluster; false does not read these Secrets", boolean(func(e *environment) *bool { return &e.Remotes.On })},
		{"PILOT_INSECURE_MULTICLUSTER_KUBECONFIG_OPTIONS", "", "insecure options that are allowed in these kubeconfigs although they read local files or run programs, comma-separated: exec, tokenFile, clientCertificate, clientKey, certificateAuthority, or the name of an auth provider", text(func(e *environment) *string { return &e.Remotes.Allowed })},
		{"PILOT_REMOTE_CLUSTER_TIMEOUT", "30s", "how long the start waits for these clusters", duration(func(e *environment) *time.Duration { return &e.Remotes.Wait })},
		{"ENABLE_MCS_SERVICE_DISCOVERY", "false", "with Kubernetes: reads the ServiceExports of the Multi-Cluster Services API in all clusters; only clients of the same cluster receive endpoints of a service that their cluster does not export", boolean(func(e *environment) *bool { return &e.MCS.Discovery })},
		{"ENABLE_MCS_HOST", "false", "serves <service>.<namespace>.svc.clusterset.local at the addresses of ServiceImports; needs ENABLE_MCS_SERVICE_DISCOVERY", boolean(func(e *environment) *bool { return &e.MCS.Host })},
		{"ENABLE_MCS_CLUSTER_LOCAL", "false", "keeps requests for <service>.<namespace>.svc.cluster.local in the cluster of the client; needs ENABLE_MCS_HOST", boolean(func(e *environment) *bool { return &e.MCS.ClusterLocal })},
		{"MCS_API_GROUP", "multicluster.x-k8s.io", "group of ServiceExports and ServiceImports", text(func(e *environment) *string { return &e.MCS.Group })},
		{"MCS_API_VERSION", "v1alpha1", "version of ServiceExports and ServiceImports", text(func(e *environment) *string { return &e.MCS.Version })},
	}
}

// gatewayAPIVariables are the rows of the table about the Gateway API.
func gatewayAPIVariables() []variable {
	return []variable{
		{"PILOT_ENABLE_GATEWAY_API", "true", "converts the objects of the Gateway API and Ingresses to Gateways and VirtualServices in memory; false ignores both", boolean(func(e *environment) *bool { return &e.GatewayAPI.On })},
		{"PILOT_ENABLE_GATEWAY_API_STATUS", "true", "writes the status of these objects", boolean(func(e *environment) *bool { return &e.GatewayAPI.Status })},
		{"PILOT_ENABLE_GATEWAY_API_DEPLOYMENT_CONTROLLER", "true", "deploys the proxies of Gateways of the Gateway API in a cluster; it needs INJECT_ENABLED", boolean(func(e *environment) *bool { return &e.GatewayAPI.Deploy })},
		{"K8S_INGRESS_NS", "istio-system", "namespace of the Gateways that Ingresses are converted to, and of the Service that receives their requests", text(func(e *environment) *string { return &e.GatewayAPI.IngressNamespace })},
	}
}

// statusVariables are the rows of the table about the status of objects.
func statusVariables() []variable {
	return []variable{
		{"PILOT_ENABLE_STATUS", "true", "writes into the status of objects whether all proxies have acknowledged them (condition Reconciled), their problems (validationMessages, condition PassedAnalysis), and what the patches of EnvoyFilters match (PatchesMatched)", boolean(func(e *environment) *bool { return &e.Status.On })},
		{"PILOT_STATUS_MAX_WORKERS", "100", "number of concurrent status writes", count(func(e *environment) *int { return &e.Status.Workers })},
		{"PILOT_STATUS_QPS", "100", "average rate of status writes per second", func(e *environment, s string) error {
			qps, err := strconv.ParseFloat(s, 64)
			if err != nil || !(qps > 0) {
				return fmt.Errorf("%q is not a number above 0", s)
			}
			e.Status.QPS = qps
			return nil
		}},
		{"PILOT_STATUS_BURST", "500", "largest burst of status writes", count(func(e *environment) *int { return &e.Status.Burst })},
		{"PILOT_ENABLE_WORKLOAD_ENTRY_HEALTHCHECKS", "true", "removes machines from load balancing while their agents report an unhealthy application, and writes the health into the status of their WorkloadEntry (condition Healthy)", boolean(func(e *environment) *bool { return &e.Health })},
	}
}

// registerVariables are the rows of the table about auto-registration.
func registerVariables() []variable {
	return []variable{
		{"PILOT_ENABLE_WORKLOAD_ENTRY_AUTOREGISTRATION", "true", "creates a WorkloadEntry for each proxy that names a WorkloadGroup (ISTIO_META_AUTO_REGISTER_GROUP), if it authenticates on the TLS port with the group's service account and its address does not belong to another workload", boolean(func(e *environment) *bool { return &e.Registration.On })},
		{"PILOT_WORKLOAD_ENTRY_GRACE_PERIOD", "10s", "how long the WorkloadEntry of a disconnected proxy is kept, in case it reconnects", duration(func(e *environment) *time.Duration { return &e.Registration.Grace })},
		{"OUTRIGGER_WORKLOAD_ENTRY_STRICT_ADDRESS", "false", "registers only proxies that connect from the address that they claim; leave it off if machines connect through a gateway or a load balancer", boolean(func(e *environment) *bool { return &e.Registration.StrictAddress })},
	}
}

func count(field func(*environment) *int) func(*environment, string) error {
	return func(e *environment, s string) error {
		n, err := strconv.Atoi(s)
		if err != nil || n < 1 {
			return fmt.Errorf("%q is not a number of at least 1: write 1 or more", s)
		}
		*field(e) = n
		return nil
	}
}
