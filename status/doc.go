// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

// Package status serves the agent's status port, 15020: readiness, the merged
// metrics of agent, Envoy and application, and the application's own probes,
// which the mesh has moved here because Envoy would refuse the kubelet.
//
// Package agent builds it from functions and addresses. The package does not depend on
// the agent, never stops anything, and stores no metrics of others. Goroutines: Run
// serves, with one goroutine for each connection, and returns when it has stopped. One
// for each source fetches its metrics during a scrape.
//
// Access:
//
//	path                                        method  who       answer
//	/healthz/ready                              any     anybody   200 or 503, a sentence
//	/stats/prometheus, /metrics                 any     anybody   200, in the requested format;
//	                                                              503 during too many other scrapes;
//	                                                              MetricsLocalOnly: loopback only
//	/app-health/<container>/{livez,readyz,startupz}
//	                                            GET     anybody   the application's answer
//	/app-lifecycle/<container>/{poststartz,prestopz}
//	                                            GET     HookSources  the application's answer
//	/quitquitquit                               POST    loopback  200, then the agent stops
//	/drain                                      POST    loopback  200 once Envoy has drained; Envoy keeps running
//	/debug/pprof/...                            any     loopback  with profiling only
//	Loopback.Debug                              GET     loopback  the state of the agent
//	anything else                               any     anybody   404
//
// "Loopback" is the address of the TCP peer, except the addresses from which Envoy
// forwards requests of others (127.0.0.6 and ::6).
package status
