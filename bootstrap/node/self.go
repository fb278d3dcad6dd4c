// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package node

// The environment variables of an Envoy that tell it about its own workload. The access loggers that
// count requests read them, so that all workloads of a namespace share one configuration.
const (
	SelfWorkload  = "OUTRIGGER_SELF_WORKLOAD"
	SelfNamespace = "OUTRIGGER_SELF_NAMESPACE"
	SelfApp       = "OUTRIGGER_SELF_APP"
	SelfVersion   = "OUTRIGGER_SELF_VERSION"
	SelfService   = "OUTRIGGER_SELF_SERVICE"
	SelfRevision  = "OUTRIGGER_SELF_REVISION"
	SelfCluster   = "OUTRIGGER_SELF_CLUSTER"
)

// StatsPrefix is the prefix of the stats with Istio's standard metrics. The agent removes it from the
// names that it shows.
const StatsPrefix = "istiocustom"

// Unknown is the value of a label of a metric whose value is not known.
const Unknown = "unknown"

// Canonical labels name the service and the revision that a workload belongs to.
const (
	canonicalName     = "service.istio.io/canonical-name"
	canonicalRevision = "service.istio.io/canonical-revision"
)

// Workload describes a workload in the labels of metrics. No field is empty: what is not known is
// [Unknown], and the revision then "latest".
type Workload struct {
	Name, Namespace, App, Version, Service, Revision, Cluster string
}

// WorkloadOf returns the description of a workload with the given labels. Without a canonical name
// the service is that of the label app, or the workload itself.
func WorkloadOf(name, namespace, cluster string, labels map[string]string) Workload {
	return Workload{
		Name: known(name), Namespace: known(namespace), App: known(labels["app"]), Version: known(labels["version"]), Cluster: known(cluster),
		Service:  known(labels[canonicalName], labels["app.kubernetes.io/name"], labels["app"], name),
		Revision: firstOf(labels[canonicalRevision], labels["app.kubernetes.io/version"], labels["version"], "latest"),
	}
}

// Environ returns the environment variables of an Envoy of the workload, NAME=value.
func (w Workload) Environ() []string {
	return []string{
		SelfWorkload + "=" + w.Name, SelfNamespace + "=" + w.Namespace, SelfApp + "=" + w.App, SelfVersion + "=" + w.Version,
		SelfService + "=" + w.Service, SelfRevision + "=" + w.Revision, SelfCluster + "=" + w.Cluster,
	}
}

func known(values ...string) string { return firstOf(append(values, Unknown)...) }

func firstOf(values ...string) string {
	for _, v := range values {
		if v != "" {
			return v
		}
	}
	return ""
}
