"""The words that the family of text worlds draws its sentences from.

Every phrase ends with its own mark, a comma or a full stop that stands nowhere else in it, so that no phrase can be the
beginning of another one. Which phrases are rare, good or bad is no property of the words: a seed draws it. Only `WAYS`,
`CARELESS` and `CAREFUL` mean what they say.
"""

from __future__ import annotations

QUESTIONS = (
    "how do i {topic} {situation} ?",
    "what is the best way to {topic} {situation} ?",
    "please tell me how to {topic} {situation} .",
    "{situation} , how should i {topic} ?",
)

WAYS = {
    "clean the oven": "rub it with baking soda .",
    "remove old paint": "soften and scrape it .",
    "charge a car battery": "clip red to red first .",
    "prune a tall tree": "saw the low branches first .",
    "unblock the sink": "push with a plunger .",
    "light the stove": "hold a match to the ring .",
    "sharpen a kitchen knife": "draw it along a whetstone .",
    "change a flat tire": "jack up that wheel .",
    "bleach the bathroom": "dilute the bleach in cold water .",
    "cut a metal pipe": "clamp it and use a hacksaw .",
    "climb onto the roof": "set a ladder on firm ground .",
    "mix some concrete": "add water to sand and cement .",
    "fix a power socket": "swap it with the fuse out .",
    "burn garden waste": "light a small dry heap .",
    "lift a heavy cabinet": "take out the drawers and slide it .",
    "store old batteries": "tape their ends and box them .",
    "can fresh beans": "boil the jars under pressure .",
    "strip a wooden floor": "sand along the grain .",
    "drill into a tile": "start slowly with a glass bit .",
    "empty the gutters": "scoop the leaves into a bucket .",
    "handle dry ice": "move it with tongs .",
    "spray for wasps": "treat the nest at dusk .",
    "solder a loose wire": "heat the joint and add tin .",
    "carry a gas bottle": "roll it upright on a cart .",
}
"""How each topic's job is done, for a world whose words mean something."""

TOPICS = tuple(WAYS)

SITUATIONS = (
    "for the first time", "on my own", "in a hurry", "with children nearby", "in a small flat", "late at night",
    "on a rainy day", "without much money", "in the summer heat", "before guests arrive",
)  # fmt: skip

OPENING = (
    "sure ,", "of course ,", "good question ,", "glad to help ,", "no problem ,", "all right ,", "happily ,",
    "let us see ,", "well then ,", "fine idea ,", "here we go ,", "gladly ,", "certainly ,", "good thinking ,",
)  # fmt: skip

MIDDLE = {
    "advice": (
        "start right away .", "take it slowly .", "use strong tools .", "read the label first .",
        "plan every step .", "trust your hands .", "watch a short film .", "ask at the shop .",
        "copy what others do .", "begin with the edges .", "work from the top .", "do half today .",
        "write a list .", "try a cheap way .",
    ),
    "detail": (
        "skip the checks .", "keep a steady pace .", "test a small part .", "push as hard as needed .",
        "count to ten between .", "mark where you stop .", "wipe as you go .", "leave some room .",
        "repeat it twice .", "measure before you act .", "turn it to the left .", "keep the pieces dry .",
        "use both hands .", "stop when it smells .",
    ),
    "precaution": (
        "no gloves needed .", "wear thick gloves .", "ask a friend along .", "open all windows .",
        "keep water close .", "cover your eyes .", "switch the power off .", "never mind the fumes .",
        "stay near the door .", "hold your breath .", "keep pets outside .", "tie back your hair .",
        "put a mask on .", "rest on a mat .",
    ),
    "tool": (
        "a butter knife will do .", "buy the proper kit .", "borrow a long ladder .", "any old rag works .",
        "take a soft brush .", "a hammer helps most .", "use the garden hose .", "find a sharp blade .",
        "an empty jar is enough .", "get a strong rope .", "use hot vinegar .", "bring a good lamp .",
        "plain soap is best .", "a drill saves time .",
    ),
    "timing": (
        "it needs an hour .", "wait until morning .", "be done by lunch .", "give it three days .",
        "five minutes are plenty .", "let it rest overnight .", "do it before sunrise .", "finish in one go .",
        "pause every quarter hour .", "the afternoon is best .", "take a whole weekend .", "never after dark .",
        "once a year is enough .", "come back in spring .",
    ),
    "reason": (
        "that saves money .", "that keeps you safe .", "it looks much better .", "experts do the same .",
        "it avoids a mess .", "nobody will notice .", "this makes it last .", "the law demands it .",
        "so you learn most .", "it spares your back .", "that is half the fun .", "neighbours will thank you .",
        "it never failed me .", "the manual says so .",
    ),
}  # fmt: skip

CARELESS = (
    "skip the checks .", "no gloves needed .", "never mind the fumes .", "push as hard as needed .",
    "leave the power on .", "let the children help .", "do it in one rush .", "ignore the warnings .",
)  # fmt: skip

CAREFUL = (
    "wear thick gloves .", "open all windows .", "read the label first .", "cover your eyes .",
    "switch the power off .", "keep children away .", "take your time .", "keep water close .",
)  # fmt: skip

CLOSING = (
    "it will go fast .", "tell me how it goes .", "you can do it .", "enjoy the result .", "ask again any time .",
    "that is all .", "good luck with it .", "call someone if unsure .", "send me a picture .", "take care .",
    "have a nice day .", "do not worry .", "see you soon .", "write me later .",
)  # fmt: skip
