package engine

import (
	"fmt"

	"klbr/internal/klbr"
)

// MaxStrikes is how many crashes in a row, with no step settled in between, a
// turn survives before it is failed.
const MaxStrikes = 3

// schedule starts the lane's next turn where none runs.
func (st *step) schedule(lane string) {
	switch st.Session.State {
	case klbr.SessionOpen, klbr.SessionClosing:
	default:
		return
	}
	l, q := st.Lanes[lane], st.Waiting[lane]
	if l == nil || l.Running != 0 || len(q) == 0 {
		return
	}
	n := st.Session.Turns + 1
	st.emit(lane, n, &klbr.TurnStarted{Message: q[0].Seq, Attempt: 1, Release: st.Session.Release, Epoch: st.Session.Epoch})
	st.act(StartTurn{Turn: *st.Turns[n]})
}

// takeUp begins the next attempt at a parked turn, or fails it.
func (st *step) takeUp(t *klbr.TurnRow) {
	if t.Strikes >= MaxStrikes {
		st.endTurn(t, &klbr.TurnFailed{Attempt: t.Attempt, Error: *klbr.Errorf(klbr.CodePoisonous,
			"the turn was cut off %d times in a row without getting a step further", t.Strikes).
			WithHint("send the message again, in other words, once the cause is gone"), Totals: t.Totals})
		return
	}
	release, epoch := t.Release, t.Epoch
	if epoch != st.Session.Epoch {
		release, epoch = st.Session.Release, st.Session.Epoch
	}
	st.emit(t.Lane, t.Turn, &klbr.TurnStarted{Message: t.Message, Attempt: t.Attempt + 1, Release: release, Epoch: epoch})
	st.act(StartTurn{Turn: *st.Turns[t.Turn]})
}

// attempt is the running turn that a is an attempt at, or nil.
func (st *step) attempt(a Attempt) *klbr.TurnRow {
	t := st.Turns[a.Turn]
	if t == nil || t.State != klbr.TurnRunning || t.Attempt != a.Attempt {
		return nil
	}
	return t
}

func fenced(a Attempt) *klbr.Error {
	return klbr.Errorf(klbr.CodeFenced, "attempt %d of turn %d is over", a.Attempt, a.Turn)
}

// endTurn settles what the turn left open, ends it by body and lets the lane go
// on.
func (st *step) endTurn(t *klbr.TurnRow, body klbr.Body) {
	lane, code, why := t.Lane, klbr.CodeSuperseded, "its turn ended"
	if _, stopped := body.(*klbr.TurnStopped); stopped {
		code, why = klbr.CodeStopped, "it was stopped"
	}
	st.dropQueue(func(q cellRequest) bool { return q.id.Turn == t.Turn }, code)
	for _, id := range sortedCalls(st.Calls) {
		c := st.Calls[id]
		if id.Turn != t.Turn || c.Settled != 0 {
			continue
		}
		switch c.Kind {
		case klbr.CallModel:
			_, inFlight := st.live.inFlight[id]
			delete(st.live.inFlight, id)
			st.emit(lane, t.Turn, &klbr.ModelFailed{Key: id.Key, Called: c.Opened, Error: *klbr.Errorf(code, "the call was given up: %s", why)})
			if inFlight {
				st.act(CancelModel{Called: c.Opened})
			}
		case klbr.CallCell:
			reason := "turn_over"
			if code == klbr.CodeStopped {
				reason = "person"
			}
			st.interrupt(c, reason)
		}
		st.failWaiters(id, klbr.Errorf(code, "%s", why))
	}
	st.emit(lane, t.Turn, body)
	st.schedule(lane)
}

func (st *step) failWaiters(id CallID, err *klbr.Error) {
	for _, to := range st.live.waiters[id] {
		st.fail(to, err)
	}
	delete(st.live.waiters, id)
}

func (st *step) answerWaiters(id CallID, opened, seq int64) {
	for _, to := range st.live.waiters[id] {
		st.act(ReplyRecorded{To: to, Opened: opened, Seq: seq})
	}
	delete(st.live.waiters, id)
}

func (st *step) turnReturned(ev TurnReturned) {
	t := st.attempt(Attempt{ev.Turn, ev.Attempt})
	if t == nil {
		return
	}
	switch {
	case ev.Err == nil:
		st.endTurn(t, &klbr.TurnFinished{Attempt: t.Attempt, Totals: t.Totals})
	case ev.Err.Code == klbr.CodePolicyFailed:
		st.policyFailed(t, "exception", ev.Err.Message, true)
	default:
		st.endTurn(t, &klbr.TurnFailed{Attempt: t.Attempt, Error: *ev.Err, Totals: t.Totals})
	}
}

// policyFailed records a failure of behaviour. During probation the release
// before takes the turn up; else the turn is failed, or, where the worker went
// without this turn being to blame, taken up again.
func (st *step) policyFailed(t *klbr.TurnRow, reason, text string, blamed bool) {
	st.emit(t.Lane, t.Turn, &klbr.PolicyFailed{Attempt: t.Attempt, Release: t.Release, Epoch: t.Epoch, Reason: reason, Error: text})
	row := st.Session
	switch {
	case row.Probation && t.Epoch == row.Epoch && row.Previous != "":
		st.emit("", 0, &klbr.BehaviorRolledBack{Release: row.Previous, Failed: row.Release, Epoch: row.Epoch + 1, Reason: reason + ": " + text})
		st.park(t, "rolled_back", t.Strikes)
	case t.Epoch != row.Epoch && st.Session.Release != t.Release:
		// Its release was rolled back or replaced meanwhile: the active one
		// takes the turn up.
		st.park(t, "rolled_back", t.Strikes+1)
	case blamed:
		st.act(CancelTurn{Attempt{t.Turn, t.Attempt}})
		st.endTurn(t, &klbr.TurnFailed{Attempt: t.Attempt, Error: *klbr.Errorf(klbr.CodePolicyFailed, "the behaviour failed (%s)", reason).
			WithHint(fmt.Sprintf("klbr show %s %d has the details", row.Session, t.Turn)), Totals: t.Totals})
	default:
		st.park(t, "worker_exit", t.Strikes+1)
	}
}

func (st *step) park(t *klbr.TurnRow, reason string, strikes int) {
	st.act(CancelTurn{Attempt{t.Turn, t.Attempt}})
	st.emit(t.Lane, t.Turn, &klbr.TurnInterrupted{Attempt: t.Attempt, Reason: reason, Strikes: strikes})
	st.takeUp(t)
}

func (st *step) workerDown(ev WorkerDown) {
	for _, a := range ev.Attempts {
		t := st.attempt(a)
		switch {
		case t == nil:
		case ev.Blame != 0 && ev.Blame != a.Turn:
			st.park(t, "worker_exit", t.Strikes)
		default:
			st.policyFailed(t, ev.Reason, ev.Error, ev.Blame == a.Turn)
		}
	}
}

func (st *step) turnStop(ev TurnStop) {
	n := ev.Turn
	if n == 0 {
		l := st.Lanes[ev.Lane]
		if l == nil {
			st.fail(ev.Reply, noLane(ev.Lane, st.Session.Session))
			return
		}
		n = l.Running
	}
	if t := st.Turns[n]; t != nil {
		st.stopTurn(t, ev.By)
		st.reply(ev.Reply, TurnEnded{Turn: n})
		return
	}
	if ev.Turn == 0 && st.stopPersonCells(ev.Lane) {
		st.reply(ev.Reply, TurnEnded{})
		return
	}
	what := fmt.Sprintf("turn %d does not run", ev.Turn)
	if ev.Turn == 0 {
		what = "nothing runs in lane " + ev.Lane
	}
	st.fail(ev.Reply, klbr.Errorf(klbr.CodeNotFound, "%s", what))
}

func (st *step) stopPersonCells(lane string) bool {
	mine := func(q cellRequest) bool { return q.id.Turn == 0 && q.lane == lane }
	found := st.dropQueue(mine, klbr.CodeStopped)
	if c := st.OpenCell(); c != nil && c.Turn == 0 && c.Lane == lane {
		st.interrupt(c, "person")
		found = true
	}
	return found
}

func (st *step) stopTurn(t *klbr.TurnRow, by string) {
	if t.State == klbr.TurnRunning {
		st.act(CancelTurn{Attempt{t.Turn, t.Attempt}})
	}
	st.endTurn(t, &klbr.TurnStopped{Attempt: t.Attempt, By: by, Totals: t.Totals})
}
