// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package main

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"time"

	"github.com/outrigger-mesh/outrigger/controlplane/server"
)

// podToken is what makes a container one of a pod with a service account.
const podToken = "/var/run/secrets/kubernetes.io/serviceaccount/token"

// kubernetesVariables are the rows of the table about the cluster.
func kubernetesVariables() []variable {
	return []variable{
		{"OUTRIGGER_KUBERNETES", server.ClusterAuto, "true uses Kubernetes: its API server tells whose a token is, the self-signed root is in the Secret istio-ca-secret, the roots are in each namespace, its services are those of the mesh, and its objects the configuration where no other is named. false does not. auto does with `--kubeconfig`, and in a pod with a service account unless `--registries \"\"` is given", func(e *environment, s string) error {
			if !slices.Contains([]string{server.ClusterAuto, server.ClusterOn, server.ClusterOff}, s) {
				return fmt.Errorf("%q is none of %s, %s and %s", s, server.ClusterAuto, server.ClusterOn, server.ClusterOff)
			}
			e.Cluster.Use = s
			return nil
		}},
		{"KUBECONFIG", "", "in a pod, or with OUTRIGGER_KUBERNETES=true: kubeconfig of the cluster, if there is such a file; else the service account of the pod is used. --kubeconfig wins. Alone, it makes nothing happen", text(func(e *environment) *string { return &e.Cluster.Kubeconfigs })},
		{"KUBERNETES_SERVICE_HOST", "", "set by Kubernetes in each pod", func(e *environment, s string) error {
			_, err := os.Stat(podToken)
			e.Cluster.InPod = s != "" && err == nil
			return nil
		}},
		{"CLUSTER_ID", "Kubernetes", "name of the cluster, as agents give it with a token; --clusterID wins", text(func(e *environment) *string { return &e.Cluster.ID })},
		{"POD_NAME", "", "name of this replica in elections (default: host name and process)", func(e *environment, s string) error {
			e.Registration.Instance = s
			if e.PodName = s; s != "" {
				return nil
			}
			host, err := os.Hostname()
			e.PodName = fmt.Sprintf("%s-%d", host, os.Getpid())
			return err
		}},
		{"ENABLE_LEADER_ELECTION", "true", "false lets each replica write the roots into the namespaces", boolean(func(e *environment) *bool { return &e.Cluster.Election })},
		{"VALIDATION_WEBHOOK_CONFIG_NAME", "istio-istio-system", "empty leaves the ValidatingWebhookConfigurations of the cluster alone; otherwise those with the label istio.io/rev of this revision are kept right, whatever they are called", func(e *environment, s string) error {
			e.Cluster.WriteWebhooks = s != ""
			return nil
		}},
		{"OUTRIGGER_ROOTS_CONFIGMAP", "true", "false leaves the ConfigMaps istio-ca-root-cert alone: for a second mesh in a cluster, or where others write them", boolean(func(e *environment) *bool { return &e.Cluster.WriteRoots })},
	}
}

// remoteVariables are the rows of the table about other clusters.
func remoteVariables() []variable {
	return []variable{
		{"OUTRIGGER_REMOTE_CLUSTERS", "true", "with Kubernetes: services are also read from the clusters whose kubeconfigs are in Secrets of the control plane's namespace with the label istio/multiCluster=true, under the name of the cluster; false does not read these Secrets", boolean(func(e *environment) *bool { return &e.Remotes.On })},
		{"PILOT_INSECURE_MULTICLUSTER_KUBECONFIG_OPTIONS", "", "ways of these kubeconfigs to read files or run programs here that are not refused, with commas between: exec, tokenFile, clientCertificate, clientKey, certificateAuthority, or the name of an auth provider", text(func(e *environment) *string { return &e.Remotes.Allowed })},
		{"PILOT_REMOTE_CLUSTER_TIMEOUT", "30s", "how long a start waits for these clusters", duration(func(e *environment) *time.Duration { return &e.Remotes.Wait })},
	}
}

// gatewayAPIVariables are the rows of the table about the Gateway API.
func gatewayAPIVariables() []variable {
	return []variable{
		{"PILOT_ENABLE_GATEWAY_API", "true", "converts the objects of the Gateway API and Ingresses to Gateways and VirtualServices in memory; false leaves both without effect", boolean(func(e *environment) *bool { return &e.GatewayAPI.On })},
		{"PILOT_ENABLE_GATEWAY_API_STATUS", "true", "writes the status of these objects", boolean(func(e *environment) *bool { return &e.GatewayAPI.Status })},
		{"K8S_INGRESS_NS", "istio-system", "namespace of the Gateways that Ingresses become, and of the Service that takes their requests", text(func(e *environment) *string { return &e.GatewayAPI.IngressNamespace })},
	}
}

// statusVariables are the rows of the table about the status of objects.
func statusVariables() []variable {
	return []variable{
		{"PILOT_ENABLE_STATUS", "true", "writes into the status of objects whether all proxies have acknowledged them (condition Reconciled) and what is wrong with them (validationMessages, condition PassedAnalysis)", boolean(func(e *environment) *bool { return &e.Status.On })},
		{"PILOT_STATUS_MAX_WORKERS", "100", "writes of status at a time", count(func(e *environment) *int { return &e.Status.Workers })},
		{"PILOT_STATUS_QPS", "100", "writes of status in a second, on average", func(e *environment, s string) error {
			qps, err := strconv.ParseFloat(s, 64)
			if err != nil || !(qps > 0) {
				return fmt.Errorf("%q is no number above 0", s)
			}
			e.Status.QPS = qps
			return nil
		}},
		{"PILOT_STATUS_BURST", "500", "writes of status that may come at once", count(func(e *environment) *int { return &e.Status.Burst })},
		{"PILOT_ENABLE_WORKLOAD_ENTRY_HEALTHCHECKS", "true", "takes machines whose agents say that the application is unhealthy out of service, and writes it into the status of their WorkloadEntry (condition Healthy)", boolean(func(e *environment) *bool { return &e.Health })},
	}
}

// registerVariables are the rows of the table about them.
func registerVariables() []variable {
	return []variable{
		{"PILOT_ENABLE_WORKLOAD_ENTRY_AUTOREGISTRATION", "true", "makes a WorkloadEntry for each proxy that names a WorkloadGroup (ISTIO_META_AUTO_REGISTER_GROUP), proves on the TLS port that it has the group's service account, and is not at an address of another workload", boolean(func(e *environment) *bool { return &e.Registration.On })},
		{"PILOT_WORKLOAD_ENTRY_GRACE_PERIOD", "10s", "how long the WorkloadEntry of a proxy that has left stays, for the case that it comes back", duration(func(e *environment) *time.Duration { return &e.Registration.Grace })},
		{"OUTRIGGER_WORKLOAD_ENTRY_STRICT_ADDRESS", "false", "registers only proxies that connect from the address that they say is theirs; leave it off if machines connect through a gateway or a load balancer", boolean(func(e *environment) *bool { return &e.Registration.StrictAddress })},
	}
}

func count(field func(*environment) *int) func(*environment, string) error {
	return func(e *environment, s string) error {
		n, err := strconv.Atoi(s)
		if err != nil || n < 1 {
			return fmt.Errorf("%q is no number: write 1 or more", s)
		}
		*field(e) = n
		return nil
	}
}
