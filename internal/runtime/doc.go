// Package runtime makes sessions and lanes come alive: it takes what arrives,
// lets the engine decide, commits the records and only then acts.
//
// What it guarantees:
//
//   - nothing is answered and nothing happens outside before its records are
//     committed;
//   - one goroutine per session steps its state; what arrives while a commit
//     runs is stepped and committed together next (group commit);
//   - when a commit fails, the session's memory is thrown away and loaded from
//     the store, every caller of the batch gets storage_failed, and what was
//     under way is fenced;
//   - a slow subscriber slows nobody: it pulls at its own pace, from memory
//     when it keeps up and from the store when it does not;
//   - Close returns when every goroutine and process of its own has ended.
//
// The adapters (store, workers, models, artifacts, effects) are seen through
// the small interfaces in ports.go.
package runtime
