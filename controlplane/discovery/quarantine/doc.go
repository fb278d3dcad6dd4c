// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

// Package quarantine withholds resources that a proxy rejected from similar proxies,
// and has one proxy try changes before the others.
//
// A [Quarantine] knows the streams as members of groups. What a member receives is
// what the generator makes, except for resources that are candidates or were rejected:
// instead of those it receives the last accepted version.
//
//   - A cohort are the proxies for which the generator makes the same sets of all
//     types. A group are the cohorts that share rejections: the proxies of one proven
//     identity that run the same program in the same version. A stream without a
//     proven identity, as on the plaintext port, is a group of its own. What a proxy
//     says affects nobody outside its group.
//   - A rejection never withholds a change of what protects (see Config.Guard): where
//     the last accepted version protects in another way, all members receive the new
//     one, and the rejection applies to the one proxy alone.
//   - A resource is known by type, name and hash. When a cohort comes to a new snapshot,
//     each new or changed cluster, listener, route and virtual host is a candidate.
//     Resources that differ only in the address of the proxy, as its own listeners do,
//     are one candidate.
//   - One member of the group, the canary, attempts the candidates of its cohort; the
//     others receive the last accepted versions, and keep what is gone from the
//     snapshot. Each resource that the canary accepts is released to all at once.
//   - An attempt ends after a second, whatever the canary does, as if there had been
//     none. If the canary disconnects, another member attempts. A member that owes an
//     answer is no canary, and a group of one needs none. Endpoints are no candidates.
//   - When a proxy rejects a response, either Envoy's message names the resources, or
//     there is only one new one: it is rejected, and the group receives its last
//     accepted version until the generator makes another. Without one it is left out,
//     but a proxy that has reconnected and may have one keeps it. If it is unclear
//     which resource is bad, all new ones are suspected and tried again in halves.
//   - What another member accepted is not rejected because of one that does not accept
//     it, nor is what fails for a reason of the machine: that member is an outlier, and
//     is no canary.
//   - A last accepted listener or route may name clusters and routes that are gone: they
//     are sent as well, with the endpoints that they had.
//
// A cohort stores only what differs from what was made. controlplane/discovery owns the
// streams. Each group has one timer; the package runs no goroutine of its own.
package quarantine
