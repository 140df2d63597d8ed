package engine

import (
	"flag"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"klbr/internal/klbr"
)

var (
	simSeed  = flag.Uint64("sim.seed", 0, "run the simulation with this seed only")
	simCount = flag.Int("sim.count", 2000, "schedules to simulate")
)

// TestSimulation drives Step through seeded schedules of admissions, answers,
// deaths, failed commits, stops, duplicates, late answers and rollbacks.
func TestSimulation(t *testing.T) {
	if *simSeed != 0 {
		simulate(t, *simSeed)
		return
	}
	count := *simCount
	if testing.Short() {
		count = 200
	}
	for seed := uint64(1); seed <= uint64(count) && !t.Failed(); seed++ {
		simulate(t, seed)
	}
}

func simulate(t *testing.T, seed uint64) {
	t.Helper()
	w := newWorld(seed)
	defer func() {
		if r := recover(); r != nil {
			f, ok := r.(simFailure)
			if !ok {
				f.text = fmt.Sprint("panic: ", r)
			}
			var last []string
			for _, ev := range w.hist[max(0, len(w.hist)-25):] {
				last = append(last, fmt.Sprintf("%T%+v", ev, ev))
			}
			t.Fatalf("%s\nrun it again with -sim.seed=%d; the last of %d steps:\n%s", f.text, seed, len(w.hist), strings.Join(last, "\n"))
		}
	}()
	for range 150 {
		switch n := w.rng.IntN(20); {
		case n < 3:
			w.send()
		case n < 5:
			w.fault()
		default:
			w.progress()
		}
	}
	w.quiet = true
	for range 2000 {
		if !w.progress() {
			if w.state.Session.State == klbr.SessionOpen {
				break
			}
			w.do(SessionResume{By: "owner"})
		}
	}
	if !w.state.Idle() {
		w.fail("at rest, but open: %+v", w.state.Snapshot())
	}
	checkLog(w)
}

// checkLog holds what a whole log must be.
func checkLog(w *world) {
	refolded := NewState("sim")
	running := map[string]int64{}
	admitted := map[string]bool{}
	open := map[string]bool{}    // calls by turn, key
	settled := map[string]bool{} // once and for all
	ledgers := map[string]*Ledger{}
	attempts := map[int64]int{}
	called := map[string]int64{} // newest model.called by turn, key
	for i, r := range w.log {
		if r.Seq != int64(i+1) {
			w.fail("record %d has seq %d", i+1, r.Seq)
		}
		if err := refolded.Fold(r); err != nil {
			w.fail("%v", err)
		}
		body, err := r.Decode()
		if err != nil || body == nil {
			w.fail("record %d (%s): %v", r.Seq, r.Kind, err)
		}
		if l := ledgers[r.Lane]; l == nil {
			ledgers[r.Lane] = &Ledger{}
		}
		if err := ledgers[r.Lane].Apply(r); err != nil {
			w.fail("%v", err)
		}
		open1 := func(key string) {
			id := fmt.Sprint(r.Turn, "/", key)
			if settled[id] {
				w.fail("record %d opens %s, which is settled", r.Seq, id)
			}
			open[id] = true
		}
		settle1 := func(key string) {
			id := fmt.Sprint(r.Turn, "/", key)
			if !open[id] || settled[id] {
				w.fail("record %d settles %s (open %v, settled %v)", r.Seq, id, open[id], settled[id])
			}
			delete(open, id)
			settled[id] = true
		}
		switch b := body.(type) {
		case *klbr.MessageAdmitted:
			if admitted[b.Source+"/"+b.SourceID] {
				w.fail("record %d admits %s again", r.Seq, b.SourceID)
			}
			admitted[b.Source+"/"+b.SourceID] = true
		case *klbr.TurnStarted:
			if running[r.Lane] != 0 && running[r.Lane] != r.Turn {
				w.fail("record %d starts turn %d beside %d", r.Seq, r.Turn, running[r.Lane])
			}
			if attempts[r.Turn]++; attempts[r.Turn] != b.Attempt {
				w.fail("record %d is attempt %d, the %d. one", r.Seq, b.Attempt, attempts[r.Turn])
			}
			running[r.Lane] = r.Turn
		case *klbr.TurnFinished, *klbr.TurnFailed, *klbr.TurnStopped:
			if running[r.Lane] != r.Turn {
				w.fail("record %d ends turn %d, which does not run", r.Seq, r.Turn)
			}
			running[r.Lane] = 0
		case *klbr.ModelCalled:
			open1(b.Key)
			if was := called[fmt.Sprint(r.Turn, "/", b.Key)]; was != 0 {
				if old := decodeCalled(w, was); old.Base != b.Base || old.Head != b.Head || old.Upto != b.Upto {
					w.fail("record %d calls %s again, otherwise than record %d", r.Seq, b.Key, was)
				}
			}
			called[fmt.Sprint(r.Turn, "/", b.Key)] = r.Seq
		case *klbr.ModelAnswered:
			if !b.Late {
				settle1(b.Key)
				if c := called[fmt.Sprint(r.Turn, "/", b.Key)]; c != b.Called {
					w.fail("record %d answers the call of record %d, record %d is open", r.Seq, b.Called, c)
				}
			}
		case *klbr.ModelFailed:
			settle1(b.Key)
		case *klbr.CellStarted:
			open1(cellCall(r.Turn, b.Key, b.Cell).Key)
		case *klbr.CellFinished:
			if !b.Late {
				settle1(cellCall(r.Turn, b.Key, b.Cell).Key)
			}
		case *klbr.EffectIntended:
			open1(b.Key)
		case *klbr.EffectSettled:
			if !b.Late {
				settle1(b.Key)
			}
		}
	}
	if len(open) > 0 {
		w.fail("never settled: %v", open)
	}
	if !reflect.DeepEqual(refolded.Snapshot(), w.state.Snapshot()) {
		w.fail("the fold of the log is not the state:\n%+v\n%+v", refolded.Snapshot(), w.state.Snapshot())
	}
	all := newRowStore()
	all.apply(refolded.TakeChanges())
	if !reflect.DeepEqual(all, w.rows) {
		w.fail("the rows rebuilt from the log differ from those that grew with it:\n%+v\n%+v", all, w.rows)
	}
	for lane, row := range w.state.Lanes {
		l := ledgers[lane]
		if l == nil {
			continue
		}
		if l.Head != row.LedgerHead || len(l.Messages) != row.LedgerCount {
			w.fail("lane %s: the ledger has %d messages, the row says %d", lane, len(l.Messages), row.LedgerCount)
		}
		if head, err := klbr.ChainLedger("", l.Messages...); err != nil || head != l.Head {
			w.fail("lane %s: the ledger's digest is not its messages' (%v)", lane, err)
		}
	}
}

func decodeCalled(w *world, seq int64) *klbr.ModelCalled {
	body, err := w.log[seq-1].Decode()
	if err != nil {
		w.fail("%v", err)
	}
	return body.(*klbr.ModelCalled)
}
