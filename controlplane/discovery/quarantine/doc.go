// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

// Package quarantine withholds resources that a proxy rejected from similar proxies, and makes one
// proxy try changes before the others.
//
// A [Quarantine] treats the streams as members of groups. A member receives what the generator
// makes, except for resources that are candidates or were rejected: instead of those it receives
// the last accepted version.
//
//   - A cohort contains the proxies for which the generator makes the same sets of all types. A
//     group contains the cohorts that share rejections: the proxies of one proven identity that
//     run the same program in the same version. A stream without a proven identity, as on the
//     plaintext port, is a group of its own. What a proxy reports affects only its group.
//   - A rejection never withholds a change of security settings (see Config.Guard). If the last
//     accepted version has other security settings, all members receive the new version, and the
//     rejection applies to the one proxy only.
//   - A resource is identified by type, name and hash. When a cohort moves to a new snapshot,
//     each new or changed cluster, listener, route and virtual host becomes a candidate.
//     Resources that differ only in the address of the proxy, as its own listeners do, are one
//     candidate.
//   - One member of the group, the canary, attempts the candidates of its cohort. The others
//     receive the last accepted versions, and keep resources that were removed from the
//     snapshot. Each resource that the canary accepts is released to all members at once.
//   - An attempt ends after a second, whatever the canary does, as if there had been none. If
//     the canary disconnects, another member attempts the candidates. A member that owes an
//     answer cannot be the canary, and a group of one needs none. Endpoints are never
//     candidates.
//   - When a proxy rejects a response, the bad resources are those that Envoy's message names,
//     or the only new one. They are rejected, and the group receives their last accepted
//     versions until the generator makes others. Resources without one are omitted, but a proxy
//     that has reconnected and may have one keeps it. If it is unclear which resource is bad,
//     all new ones are suspected and tried again in halves.
//   - A rejection has no effect on others if another member has accepted the resource, or if its
//     cause is local to the machine. The rejecting member is then an outlier, which is not used
//     as a canary.
//   - A last accepted listener or route may refer to clusters and routes that were removed. They
//     are sent as well, with their last endpoints.
//
// A cohort stores only the differences from what was made. controlplane/discovery owns the
// streams. Each group has one timer; the package starts no goroutines of its own.
package quarantine
